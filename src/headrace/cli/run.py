"""`headrace run` starts an application; `pause`, `resume` and `snapshot` control a running one over its web server.

`start_spark` starts the session that the application will find, and `warm_up` runs a first batch on it for a standby.
`run_standby` is `headrace run --standby`: an instance that waits until the running one is gone, and then takes over.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from headrace.app import Application
from headrace.checkpoint.backfill_checkpoint import Progress
from headrace.checkpoint.copy import copy_checkpoint
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.storage import open_storage
from headrace.cli.options import StartsOption, Target, choose_starts, load_application, open_checkpoint
from headrace.cli.output import CommandError, UsageError, print_note, stderr
from headrace.cli.web_server import (
    DEFAULT_URL,
    Certificates,
    ServerOptions,
    TokenArgument,
    TokenFile,
    Url,
    open_client,
    takes_server,
)
from headrace.clients import Admin, Producer
from headrace.config import parsing
from headrace.config.parsing import Trigger
from headrace.dsl.builder import StreamsBuilder
from headrace.errors import AlreadyRunningError, StreamsError
from headrace.extras import import_extra, needs_extra
from headrace.model.clock import SystemClock
from headrace.query.follower import Follower
from headrace.query.standby import read_report, wait_for_takeover
from headrace.query.status import ApplicationReport, RunningApplication, SampledRecord
from headrace.serde.primitives import STRING
from headrace.spark.application_state import State, ended_by_signals
from headrace.spark.job import absolute
from headrace.topology.graph import prefix_sinks
from headrace.web import ApplicationView

if TYPE_CHECKING:
    from headrace.web import Server

WARM_UP_TIMEOUT = 60_000  # ms
READY_INTERVAL = 0.05  # seconds between two looks whether the first batch can begin
_log = logging.getLogger(__name__)


@takes_server(port=8089)
def run(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Process what is in the log, then stop.")] = False,
    standby: Annotated[bool, typer.Option("--standby", help="Wait to take over from the running instance.")] = False,
    master: Annotated[str | None, typer.Option(help="local[4], spark://HOST:7077, yarn, k8s://…")] = None,
    trigger: Annotated[
        Trigger | None, typer.Option(help="What runs a batch: slots that stay alive, or a Spark job.")
    ] = None,
    application_id: Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint. Only with a Topology.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="The directory of local state. Only with a Topology.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, which overrides the file, or a setting of the Application."),
    ] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Begin with a copy of this application's state, beside it. Needs --application-id, a prefix."
        ),
    ] = None,
    output_prefix: Annotated[
        str | None, typer.Option(help="With --from-checkpoint: the prefix of the topics that it writes.")
    ] = None,
    backfill: Annotated[
        bool, typer.Option("--backfill", help="Fill new stores from history, before the application goes on.")
    ] = False,
    starts: StartsOption = None,
    web: Annotated[bool, typer.Option("--web", help="Serve the dashboard and the stores while it runs.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's messages while it starts.")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Run an application on Spark, until Ctrl-C or SIGTERM."""
    if once and standby:
        raise UsageError("--once ends, and --standby waits: give one of them")
    options = {
        "--application-id": application_id,
        "--log": log,
        "--checkpoint": checkpoint,
        "--state-dir": state_dir,
        "--config": config,
        "--set": settings,
    }
    ignored = {"--log"}  # HEADRACE_LOG may be set for other commands
    if from_checkpoint is not None:
        ignored |= {"--application-id", "--checkpoint"}
    if web:
        import_extra("headrace.web.server", "web")  # before Spark has started
    app = load_application(target, options, ignored=ignored)
    if from_checkpoint is not None or output_prefix is not None:
        app = begin_copy(app, application_id, from_checkpoint, output_prefix, checkpoint)
    if trigger is not None:
        app.setup = replace(app.setup, config=replace(app.setup.config, processing_trigger=trigger))
    choose_starts(app, starts)
    start_spark(app, master, verbose=verbose)
    logging.getLogger("headrace.app").setLevel(logging.CRITICAL)  # the command prints the error that stops it
    with BackfillBar(stderr()) as bar:
        if backfill:
            app.setup = replace(app.setup, backfill=True, on_backfill=bar.show)
        if once:
            with nullcontext() if backfill else stderr().status(f"{app.application_id} is processing the log …"):
                app.run_available()
            return
        app.on_state_change(partial(_print_stop, app.application_id))
        serve: Serve = partial(_serve, app, server) if web else _serve_nothing
        if standby:
            with stderr().status("Warming up Spark …"):
                warm_up(app)
        (run_standby if standby else _run)(app, serve)
    print_note(f"{app.application_id} has stopped.")


class BackfillBar:
    """Shows how far a backfill is, and what it has done."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = ProgressBar(*columns, console=console, transient=True)
        self._shown: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._shown is not None:  # else it would print an empty line
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        if self._shown is None:
            self._bar.start()
            self._shown = self._bar.add_task(f"Filling {', '.join(progress.stores)}", total=progress.of_records)
        self._bar.update(self._shown, completed=progress.records)
        if progress.is_done:
            self._bar.stop()
            self._shown = None
            print_note(f"Filled {', '.join(progress.stores)} from {progress.of_records:,} records.")


def begin_copy(
    app: Application, name: str | None, source: str | None, prefix: str | None, checkpoint: str | None
) -> Application:
    """Turn an application into a second one beside it, which begins with a copy of the first one's checkpoint."""
    if name is None or source is None or not prefix:
        raise UsageError("--from-checkpoint, --output-prefix and --application-id belong together: give all of them")
    app = prefix_outputs(app, name, prefix, checkpoint or f"{name}-checkpoint", flag="--application-id")
    target = open_storage(app.setup.checkpoint)
    if manifest_numbers(target):
        return app  # it was copied at an earlier start
    with stderr().status(f"Copying the state for {name} …") as status:

        def show(done: int, tasks: int) -> None:
            status.update(f"Copying the state for {name}: {done} of {tasks} tasks")

        copy_checkpoint(open_checkpoint(source), target, name, prefix=prefix, on_task=show)
    print_note(f"{name} begins with a copy of {source}. What it writes goes to topics that begin with {prefix}")
    return app


def prefix_outputs(app: Application, name: str, prefix: str, checkpoint: str, *, flag: str) -> Application:
    """Give an application another id and checkpoint, and a prefix before every topic that it writes."""
    try:
        parsing.application_id(name)
    except ValueError as error:
        raise UsageError(f"{flag} {prefix!r}: {error}" if flag == "--into" else f"{flag}: {error}") from None
    setup, config = app.setup, app.setup.config
    dead_letters, drops = config.errors_dead_letter_queue_topic_name, config.dropped_records_topic_name
    config = replace(
        config,
        application_id=name,
        errors_dead_letter_queue_topic_name=None if dead_letters is None else prefix + dead_letters,
        dropped_records_topic_name=None if drops is None else prefix + drops,
    )
    app.application_id = name
    app.setup = replace(
        setup,
        application_id=name,
        graph=prefix_sinks(setup.graph, prefix),
        config=config,
        checkpoint=absolute(checkpoint),
    )
    return app


def _print_stop(application_id: str, state: State, before: State) -> None:
    if state is State.PENDING_SHUTDOWN:
        text = (
            f"{application_id} is stopping: it ends the running batch, and delivers what it can. Ctrl-C ends it now.\n"
        )
        os.write(2, text.encode())  # in the handler of a signal, which may have interrupted a print


def _run(app: Application, serve: Serve) -> None:
    setup = app.setup
    with serve(Follower.open(setup.checkpoint, setup.graph, setup.config), app) as server, _announced(app, server):
        app.run()


@contextmanager
def _announced(app: Application, server: Server | None) -> Generator[None]:
    """Says that the application is running as soon as its first batch can begin."""
    is_over = threading.Event()

    def announce() -> None:
        while not is_over.wait(READY_INTERVAL):
            if app.is_ready:
                print_note(f"{app.application_id} is running. Ctrl-C ends it.{f' See {server.link}' if server else ''}")
                return

    thread = threading.Thread(target=announce, name="headrace announcement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _serve(app: Application, options: ServerOptions, follower: Follower, running: RunningApplication) -> Server:
    return options.open(make_view(app, follower, running))


def make_view(app: Application, follower: Follower, running: RunningApplication) -> ApplicationView:
    """Return what the dashboard shows of an application that runs in this process."""
    topology = app.topology.describe()
    return ApplicationView(follower=follower, application=running, topology=topology, settings=app.setup.settings)


def _serve_nothing(follower: Follower, running: RunningApplication) -> AbstractContextManager[None]:
    return nullcontext()


# ------------------------------------------------------------------------------------------------------ Spark's start
def start_spark(app: Application, master: str | None = None, *, verbose: bool = False) -> None:
    """Start the session that the application will find, and explain what is missing if Spark does not start."""
    setup = app.setup
    if setup.spark is not None:
        return
    with stderr().status("Starting Spark …"):
        try:
            with needs_extra("spark"):
                # The import takes a second, which other commands save.
                from headrace.spark.session import start_context  # noqa: PLC0415
            start_context(master or setup.master, setup.config.num_stream_threads, verbose=verbose).result()
        except StreamsError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"Spark could not be started: {reason}. `headrace doctor` says what is missing"
            ) from error


def warm_up(app: Application) -> None:
    """Count a word in the application's session, with a temporary log, checkpoint and state directory.

    The first batch of a JVM takes seconds, which a standby can afford and a failover cannot.
    """
    builder = StreamsBuilder()
    words = builder.stream("words", key=STRING, value=STRING)
    words.group_by(_select_word, key=STRING, value=STRING).count()
    with TemporaryDirectory(prefix="headrace-warm-up-") as folder:
        log, setup = f"file:{folder}/log", app.setup
        with Admin(log) as admin:
            admin.create_topic("words", partitions=1)
        with Producer(log, key=STRING, value=STRING) as producer:
            producer.send("words", "a", "a")
        warm_up_app = Application(
            "warm-up", builder.build(), log,
            checkpoint=f"{folder}/checkpoint", state_dir=f"{folder}/state", spark=setup.spark, master=setup.master,
        )  # fmt: skip
        try:
            with warm_up_app:
                warm_up_app.drain(WARM_UP_TIMEOUT)
        except StreamsError as error:  # on a cluster, whose executors cannot read the temporary log
            _log.info("Spark is not warm: %s", error)


def _select_word(key: Any, word: Any) -> Any:
    return word


# ------------------------------------------------------------------------------------- control of a running application
def pause(
    url: Url = DEFAULT_URL, token_file: TokenFile = None, tls_ca: Certificates = None, token: TokenArgument = None
) -> None:
    """Pause an application: no further batch begins until it is resumed."""
    _act(url, token_file, tls_ca, "pause")
    print_note("Paused: no further batch begins until `headrace resume`.")


def resume(
    url: Url = DEFAULT_URL, token_file: TokenFile = None, tls_ca: Certificates = None, token: TokenArgument = None
) -> None:
    """Resume an application that was paused."""
    _act(url, token_file, tls_ca, "resume")
    print_note("Resumed.")


def snapshot(
    url: Url = DEFAULT_URL, token_file: TokenFile = None, tls_ca: Certificates = None, token: TokenArgument = None
) -> None:
    """Merge the deltas of the state, so that a restart reads one file for each task."""
    _act(url, token_file, tls_ca, "snapshot")
    print_note("Started: the next batches add the snapshots to the checkpoint.")


def scale(
    slots: Annotated[int, typer.Argument(min=1, help="How many slots.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    tls_ca: Certificates = None,
    token: TokenArgument = None,
) -> None:
    """Set the number of slots of a running application. Tasks move with their state, between two batches."""
    with open_client(url, token_file, tls_ca) as client:
        found = client.scale(slots)
    print_note(f"{found} slots." if found == slots else f"{found} slots: Spark has no room for more, or no more tasks.")


def _act(url: str, token_file: Path | None, certificates: Path | None, action: str) -> None:
    with open_client(url, token_file, certificates) as client:
        client.act(action)


# ---------------------------------------------------------------------------------------------------------- standby
# Starts the web server of an application, if the command asks for one.
Serve = Callable[[Follower, RunningApplication], AbstractContextManager["Server | None"]]


def run_standby(app: Application, serve: Serve) -> None:
    """Follow the application until no instance runs it, then run it until a signal."""
    setup = app.setup
    follower = Follower.open(setup.checkpoint, setup.graph, setup.config)
    instance = StandbyInstance(app, follower)
    app.on_state_change(instance.on_state_change)
    with serve(follower, instance) as server:  # at the same address before and after the takeover
        seen = f" See {server.link}" if server else ""
        while True:
            with ended_by_signals() as stop:
                print_note(f"{app.application_id} stands by. Ctrl-C ends it.{seen}")
                seen = ""  # the link, which may have a token, is printed once
                is_free = wait_for_takeover(follower, stop)
            if not is_free:
                return
            try:
                instance.is_active.set()
                app.run()
            except AlreadyRunningError:  # another standby took over first
                instance.is_active.clear()
                continue
            return


class StandbyInstance:
    """The application as this process reports it: from the checkpoint while it stands by, itself after a takeover."""

    def __init__(self, app: Application, follower: Follower) -> None:
        self._app, self._follower, self._clock = app, follower, SystemClock()
        self.is_active, self._announced = threading.Event(), False

    def on_state_change(self, state: State, before: State) -> None:
        if state is State.RUNNING and not self._announced:
            self._announced, batch = True, self._follower.freshness.batch
            print_note(f"{self._app.application_id} has taken over after batch {batch}. Ctrl-C ends it.")

    def report(self) -> ApplicationReport:
        if self.is_active.is_set():
            return self._app.report()
        return read_report(self._follower.storage, self._follower.epoch, self._clock.now())

    def pause(self) -> None:
        self._active_app().pause()

    def resume(self) -> None:
        self._active_app().resume()

    def stop(self) -> None:
        self._active_app().stop()

    def snapshot(self) -> None:
        self._active_app().snapshot()

    def scale(self, slots: int) -> int:
        return self._active_app().scale(slots)

    def samples(self, node: str) -> Sequence[SampledRecord]:
        return self._app.samples(node)

    def _active_app(self) -> Application:
        if not self.is_active.is_set():
            raise StreamsError(f"{self._app.application_id} stands by here: send that to the instance that runs")
        return self._app
