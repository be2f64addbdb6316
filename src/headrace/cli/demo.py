"""`headrace demo`: run an example on Spark and the embedded log, with generated events, and show its results live.

The examples are in `examples/` of a clone, and in `headrace/programs/examples/` of an installed package.
"""

from __future__ import annotations

import ast
import random
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

import headrace
from headrace.app import Application
from headrace.cli.options import AsJson
from headrace.cli.output import CommandError, print_note, print_rows, stdout
from headrace.cli.run import READY_INTERVAL, make_view, start_spark
from headrace.clients import Consumer, ConsumerRecord, Producer
from headrace.extras import import_extra
from headrace.log import open_log
from headrace.query.follower import Follower
from headrace.spark.application_state import ended_by_signals

if TYPE_CHECKING:
    from headrace.web import Server

_PACKAGE = Path(headrace.__file__).parent


def find_folder() -> Path:
    """Return the folder of the examples."""
    found = [place for place in (_PACKAGE / "programs/examples", _PACKAGE.parents[1] / "examples") if place.is_dir()]
    if not found:
        raise CommandError(
            f"the examples are not where they should be, {_PACKAGE / 'programs'}: install headrace again"
        )
    return found[0]


def list_examples() -> dict[str, str]:
    """Return the names of the examples, each with the first paragraph of its docstring."""
    files = sorted(path for path in find_folder().glob("*.py") if path.stem not in {"events", "__init__"})
    return {path.stem: _read_summary(path) for path in files}


def load_example(name: str) -> ModuleType:
    """Import an example under the name by which the workers import it."""
    if name not in list_examples():
        raise CommandError(f"there is no example {name!r} (there are: {', '.join(list_examples())})")
    parent = str(find_folder().parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    return import_module(f"examples.{name}")


def _read_summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


EVENTS_PER_SECOND = 40
ROWS = 15
PARTITIONS = 2
FIRST_RESULT_TIMEOUT = 60.0  # seconds after which `--seconds` counts even without a result


def demo(
    name: Annotated[str, typer.Argument(help="The name of the example.")] = "stock_statistics",
    seconds: Annotated[float | None, typer.Option(help="Stop so many seconds after the first result.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Keep the log and the checkpoint in this directory.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the examples, and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an example with generated events, and show its results live, until Ctrl-C."""
    if list_all:
        rows = [{"name": example, "about": about} for example, about in list_examples().items()]
        print_rows(rows, ["name", "about"], as_json=as_json)
        return
    example = load_example(name)
    with ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        last = stack.enter_context(_run_example(name, example, folder.absolute(), seconds))
        stdout().print(last)
    _print_hints(name, example, directory)


@contextmanager
def _run_example(name: str, example: Any, folder: Path, seconds: float | None) -> Generator[Table]:
    """Run an example, and yield the last table of results."""
    address = f"file:{folder / 'log'}"
    with closing(open_log(address)) as log:
        for topic in {*example.TOPICS, *example.OUTPUTS} - log.topics().keys():
            log.create_topic(topic, PARTITIONS)
        state = str(folder / "state")
        app = Application(
            example.APPLICATION, example.build(), address, checkpoint=str(folder / "checkpoint"), state_dir=state
        )
        import_extra("headrace.web.server", "web")  # before Spark has started
        start_spark(app)
        with ended_by_signals() as stop:
            app.start()
            generator = threading.Thread(target=_produce_events, args=(example, address, stop))
            generator.start()
            try:
                with _serve_dashboard(app) as server:
                    while not app.is_ready and app.state is app.State.RUNNING:
                        stop.wait(READY_INTERVAL)
                    topic = next(iter(example.TOPICS))
                    print_note(f"{name} is running on Spark, see {server.link}")
                    print_note("Ctrl-C ends it. In another terminal, try:")
                    print_note(f"  headrace consume --log {address} --topic {topic} --property print.key=true")
                    yield _show_results(name, example, address, stop, seconds)
            finally:
                stop.set()
                generator.join()
                app.stop()


def _serve_dashboard(app: Application) -> Server:
    """Return the dashboard's server, on a free port of this machine."""
    from headrace.web import Server  # noqa: PLC0415 - other commands need no web server

    setup = app.setup
    follower = Follower.open(setup.checkpoint, setup.graph, setup.config)
    return Server(make_view(app, follower, app))


def _produce_events(example: Any, address: str, stop: threading.Event) -> None:
    """Write the example's events to the log until `stop` is set."""
    with Producer(address) as producer:
        for event in example.events(random.Random(7)):  # noqa: S311 - test data
            key, value = example.TOPICS[event.topic]
            producer.send(
                event.topic,
                event.key,
                event.value,
                key_serde=key,
                value_serde=value,
                timestamp=event.timestamp,
                headers=event.headers,
            )
            if stop.wait(1 / EVENTS_PER_SECOND):
                return


def _show_results(name: str, example: Any, address: str, stop: threading.Event, seconds: float | None) -> Table:
    """Show the latest value of every key that the example writes, until `stop` is set or the time is over."""
    latest: dict[tuple[str, str], str] = {}
    count, begun, clock = 0, time.monotonic() + FIRST_RESULT_TIMEOUT, time.monotonic
    with (
        Consumer(address, auto_offset_reset="earliest") as consumer,
        Live(_make_table(name, latest, 0), console=stdout(), refresh_per_second=5, transient=True) as live,
    ):
        consumer.subscribe(*example.OUTPUTS)
        while not stop.is_set() and (seconds is None or clock() < begun + seconds):
            records = consumer.poll(200)
            if records:
                begun = min(begun, clock())  # on a slow machine the first result takes a while
            for record in records:
                key, value = _format_result(example, record)
                latest.pop((record.topic, key), None)
                latest[record.topic, key] = value
                count += 1
            live.update(_make_table(name, latest, count))
    return _make_table(name, latest, count)


def _format_result(example: Any, record: ConsumerRecord[bytes | None, bytes | None]) -> tuple[str, str]:
    """Return the key and the value of a result as text."""
    decoded: list[Any] = [
        None if raw is None else serde.decode(raw)
        for raw, serde in zip((record.key, record.value), example.OUTPUTS[record.topic], strict=True)
    ]
    key, value = decoded
    if hasattr(key, "window"):
        return f"{key.key} [{key.window.start // 1000 % 86400} s]", str(value)
    return str(key), str(value)


def _make_table(name: str, latest: dict[tuple[str, str], str], count: int) -> Table:
    table = Table("topic", "key", "latest value", title=f"{name}: {count:,} results, the last {ROWS} keys")
    for (topic, key), value in list(latest.items())[-ROWS:]:
        table.add_row(Text(topic), Text(key), Text(value))
    return table


def _print_hints(name: str, example: Any, directory: Path | None) -> None:
    print_note(f"Next: the program is {find_folder() / name}.py. `headrace demo --list` lists the others,")
    if directory is None:
        print_note(f"`headrace demo {name} --directory demo` keeps log and state: the next run goes on where it ended.")
        return
    topic = next(iter(example.OUTPUTS))
    print_note(
        f"`headrace consume --log file:{directory}/log --topic {topic} --from-beginning` reads what came out, and the"
    )
    print_note("same demo in the same directory goes on where this one ended.")
