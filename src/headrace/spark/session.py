"""Spark sessions: the one that Headrace makes if it is given none, and the one that a query runs in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from uuid import UUID

from py4j.protocol import Py4JError, Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway  # pyright: ignore[reportUnknownVariableType]
from pyspark.sql import SparkSession

from headrace.errors import ConfigError, StreamsError
from headrace.spark.application_state import make_socket_folder
from headrace.spark.java import spark_archive
from headrace.spark.slot_process import LONGEST_PATH

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ATTEMPTS = 4  # at a Spark task; the same as on a cluster
# On one machine Spark gets more task threads than slots: slots hold theirs for as long as an application runs, and
# other jobs of the session, a second application among them, need some too. SLOTS says how many are meant for slots.
SPARE_THREADS = 16
SLOTS = "spark.headrace.slots"
MAX_EXECUTORS = "spark.dynamicAllocation.maxExecutors"
ONE_PROCESS = re.compile(r"local(\[|$)")  # a master whose driver is the executor, unlike local-cluster
LOOPBACK = "127.0.0.1"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
LOGGING = Path(__file__).with_name("log4j2.properties")

# Our JVM only coordinates: its compiler and its collector must not compete with the work.
JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING}"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
}
# With adaptive execution the shuffle stages would run before the batch is ours to commit.
OF_THE_QUERY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # for a few rows, generating code takes longer than the work
    "spark.sql.ui.explainMode": "simple",  # Spark explains every batch to its UI, which is off
    "spark.sql.streaming.checkpointFileManagerClass": MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000000000",  # else Spark's logs are listed after every batch
}
# The manifests say where to continue, so Spark's own progress files are never read: Spark keeps its progress in memory,
# and writes it once an hour. Writing it before and after every batch took a fifth of the time of a small batch.
DISPOSABLE = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "3600000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",  # Spark cannot know that our sink needs none of it
}


def session(master: str | None = None, slots: int | None = None, *, verbose: bool = False) -> SparkSession:
    """Returns the session of this process, or creates one: on `master`, else on this machine.

    On this machine it has `slots` slots, by default one for each core. `verbose` shows the output of the JVM's start.
    """
    return session_of(start_context(master, slots, verbose=verbose).result())


def session_of(context: SparkContext) -> SparkSession:
    """Returns the session of a context. It takes a second to create one, which the real-time trigger need not spend."""
    return SparkSession.builder.config(conf=context.getConf()).getOrCreate()


def start_context(
    master: str | None = None,
    slots: int | None = None,
    *,
    given: SparkSession | None = None,
    verbose: bool = False,
    java_options: str | None = None,
) -> Future[SparkContext]:
    """Returns the context of `given`, or of this process, or begins to create one: a JVM takes seconds to start.

    It is created on `master`, else on the cluster that `spark-submit` was given, else on this machine, where it has
    `slots` slots, by default one for each core. `java_options` replace the options that make a JVM start faster.
    """
    if given is None and _starting and not _starting[-1].done():
        return _starting[-1]  # begun by an application that then failed to start
    started = Future[SparkContext]()
    active = SparkContext._active_spark_context  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    found = active if master is None else None
    if given is not None:
        found = _context_of(given)
    if found is not None:
        started.set_result(found)
        return started
    faster = " ".join(spark_archive().options()) if java_options is None else java_options
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers on this machine find the modules that the driver finds.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path))
    submitted = None if master is not None else _submitted_master()
    conf = SparkConf().setIfMissing("spark.app.name", "headrace")
    give = conf.set if submitted is None else conf.setIfMissing
    for name, value in SETTINGS.items():
        give(name, value)
    give("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {faster}")
    master = master or submitted
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,(\d+))?\])?", master or f"local[{slots or '*'}]")
    if local is None:
        conf.setMaster(master or "")
    else:
        cores = _count_cores() if local[1] == "*" else int(local[1] or 1)
        # Without a number of attempts Spark would not try again on one machine, though a worker may have been killed.
        conf.setMaster(f"local[{cores + SPARE_THREADS},{local[2] or ATTEMPTS}]")
        conf.set("spark.default.parallelism", str(cores)).set(SLOTS, str(cores))
        conf.set("spark.python.daemon.module", "headrace.spark.python_daemon")
        if "SPARK_LOCAL_IP" not in os.environ:  # else Spark listens where other machines can connect, without a login
            conf.setIfMissing("spark.driver.bindAddress", LOOPBACK).setIfMissing("spark.driver.host", LOOPBACK)
        # A JVM that this process has not started may outlive the process, and keeps the folder of its first context.
        sockets = {UNIX_SOCKETS: "false"} if "PYSPARK_GATEWAY_PORT" in os.environ else _choose_sockets()
        conf.setAll([*sockets.items()])

    def create() -> None:
        try:
            started.set_result(_create(conf, verbose=verbose))
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            started.set_exception(error)

    # In the main thread PySpark would replace the handler of SIGINT with its own, which cancels all jobs and raises
    # KeyboardInterrupt. Applications stop at SIGINT, and need their jobs until the last batch is committed.
    _starting[:] = [started]
    threading.Thread(target=create, name="headrace start of Spark", daemon=True).start()
    return started


_starting: list[Future[SparkContext]] = []  # the last context that this process has begun to create


def _choose_sockets(folder: Path | None = None) -> dict[str, str]:
    """Returns the settings for Unix sockets between Spark and its Python workers, in a folder of this user alone.

    Spark does not authenticate them, and would put them into the directory for temporary files of all users. Where the
    path is too long for a socket, and on a cluster, Spark uses TCP on the loopback interface, with a secret.

    >>> _choose_sockets(Path("/tmp/" + 20 * "long"))
    {'spark.python.unix.domain.socket.enabled': 'false'}
    """
    folder = folder or make_socket_folder()
    name = f"/.{UUID(int=0)}.sock"
    is_short = len(os.fsencode(folder)) + len(name) <= LONGEST_PATH
    directory = {"spark.python.unix.domain.socket.dir": str(folder)}
    return {UNIX_SOCKETS: "true", **directory} if is_short else {UNIX_SOCKETS: "false"}


def _submitted_master() -> str | None:
    """The cluster that `spark-submit` was given; None if it was given none, or has not started this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    jvm: Any = SparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    system = jvm.java.lang.System
    if "pyspark-shell" in (system.getProperty("sun.java.command") or ""):  # another program of ours shares its JVM
        return None
    master = system.getProperty("spark.master") or "local"
    return None if ONE_PROCESS.match(master) else master


def _create(conf: SparkConf, *, verbose: bool) -> SparkContext:
    """Creates the context, and hides what a new JVM prints until then: warnings that no user can act on."""
    has_jvm = SparkContext._gateway is not None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if has_jvm or "PYSPARK_GATEWAY_PORT" in os.environ:
        return SparkContext.getOrCreate(conf)
    if verbose:
        return SparkContext(conf=conf, gateway=_launch_jvm(conf, {}))
    read_end, write_end = os.pipe()
    relay = _StderrRelay(os.fdopen(read_end, "rb"))
    try:
        try:
            gateway = _launch_jvm(conf, {"stderr": write_end})
        finally:
            os.close(write_end)
        context = SparkContext(conf=conf, gateway=gateway)
        # PySpark's server of accumulators loses its connection when the JVM ends before this process does, and would
        # print a traceback. Nobody needs it: an application that loses its JVM says so itself.
        server = context._accumulatorServer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if server is not None:
            server.handle_error = _ignore
    except BaseException:
        relay.open(with_beginning=True)
        raise
    relay.open(with_beginning=False)
    return context


def _launch_jvm(conf: SparkConf, options: dict[str, Any]) -> Any:
    """Starts a JVM that ends with this process, and not before: slots and the last batch need it.

    Shells and `timeout` signal a process group, so the JVM has a group of its own. systemd signals every process of a
    service, so the JVM ignores SIGTERM. It ends when its standard input is closed, which is when this process ends.
    """
    gateway: Any = launch_gateway(conf, {**options, "process_group": 0})
    signals = gateway.jvm.sun.misc
    signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    return gateway


@contextmanager
def explain_lost_jvm(context: SparkContext) -> Generator[None]:
    """Raises an error that explains it if the JVM has ended, before or while the block uses it."""
    _check_jvm(context, 0.0)
    try:
        yield
    except (Py4JError, ConnectionError) as error:  # py4j also says that a class "does not exist in the JVM"
        _check_jvm(context, 1.0)
        if not isinstance(error, Py4JNetworkError | ConnectionError):
            raise
        raise StreamsError(f"the JVM of Spark does not answer ({error}): it has ended. {_CONTINUES}") from error


_CONTINUES = "Start the application again: it continues with the last batch"


def _check_jvm(context: SparkContext, seconds: float) -> None:
    """Raises an error if the JVM that this process has started ends within `seconds`."""
    gateway: Any = context._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    process = getattr(gateway, "proc", None)
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
            how = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"its exit code is {code}"
            raise StreamsError(
                f"the JVM of Spark (process {process.pid}) has ended: {how}. {_CONTINUES}. If no one has killed it, "
                "look for `Out of memory` in the kernel's log (dmesg)"
            )


class _StderrRelay:
    """Passes the output of the JVM and its Python workers on to stderr: keeps it until `open` is called, then at once.

    It leaves out the traceback of a worker whose connection Spark closed after an idle minute.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._lock = source, threading.Lock()
        self._kept: list[bytes] | None = []
        self._thread = threading.Thread(target=self._run, name="headrace stderr of Spark", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for text in without_idle_workers(self._source):
            with self._lock:
                if self._kept is None:
                    _print(text)
                else:
                    self._kept.append(text)

    def open(self, *, with_beginning: bool) -> None:
        """Passes output on from now on; prints the output that was kept, or drops it."""
        with self._lock:
            if with_beginning:
                _print(b"".join(self._kept or ()))
            self._kept = None
        if with_beginning:
            self._thread.join(1.0)  # a JVM that could not start has ended, and so does its output


MAX_LINE, MAX_BLOCK = 1 << 16, 1 << 20  # bytes: functions of the user may print without end


class _Lines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def without_idle_workers(source: _Lines) -> Iterator[bytes]:
    r"""Leaves out what PySpark's daemon prints about a worker whose connection was closed; joins other tracebacks.

    >>> from io import BytesIO
    >>> worker = b'Traceback (most recent call last):\n  File "pyspark/daemon.py", line 95, in worker\n'
    >>> b"".join(without_idle_workers(BytesIO(b"one\n" + worker + b"BrokenPipeError: [Errno 32]\n" + b"two\n")))
    b'one\ntwo\n'
    """
    block = b""
    while line := source.readline(MAX_LINE):
        if block and line.startswith(b" ") and len(block) < MAX_BLOCK:
            block += line
        elif block:
            if not (b"pyspark/daemon.py" in block and line.startswith(b"BrokenPipeError")):
                yield block + line
            block = b""
        elif line.startswith(b"Traceback (most recent call last):"):
            block = line
        else:
            yield line
    if block:
        yield block


def _ignore(request: object, client_address: object) -> None:
    """Stands in for `socketserver.BaseServer.handle_error`."""


def _print(text: bytes) -> None:
    with suppress(OSError):  # stderr is closed
        os.write(2, text)


def _count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SlotCount(NamedTuple):
    """How many slots an application has, why, and how many cores they leave to other jobs (None: enough)."""

    slots: int
    reason: str
    free: int | None


def count_slots(
    spark: SparkContext, tasks: int, demand: int | None, free_cores: int, *, own: int = 0, others: int = 0
) -> SlotCount:
    """Returns how many slots an application gets: as many as it asks for, if it has the tasks and Spark the cores.

    `free_cores` cores stay for other jobs. The application has `own` slots already, which it keeps; other applications
    of the context have `others`. A context that Headrace has made on one machine has enough threads for all of them.

    With dynamic allocation, executors that Spark has not started yet count too: Spark starts them when jobs wait.
    Where it may start any number of executors, the application gets what it asks for.
    """
    conf, free = spark.getConf(), None
    if (made_for := conf.get(SLOTS)) is not None:
        room, reason = int(made_for), "the Spark session was made for this number"
    elif demand is not None and _has_unlimited_executors(conf):
        room, reason = demand, "Spark starts executors for them"
    else:
        cores = _count_executor_cores(spark)
        most, free = cores - free_cores, cores - others
        room, reason = min(most, max(own, most - others)), _describe_cores(cores, free_cores, others)
    limits = [(room, reason), (tasks, "that is the number of tasks")]
    if demand is not None:
        limits.insert(0, (demand, "that many were asked for (num.stream.threads, or scale)"))
    limit, why = min(limits, key=lambda some: some[0])
    slots = max(1, limit)
    return SlotCount(slots, why, None if free is None else free - slots)


def _describe_cores(cores: int, free_cores: int, others: int) -> str:
    """Says how the cores of Spark are used.

    >>> _describe_cores(5, 1, 0)
    'Spark has 5 cores, of which 1 stays free (slots.free.cores)'
    >>> _describe_cores(4, 0, 2)
    'Spark has 4 cores, of which other applications hold 2'
    """
    if not cores:
        return "Spark has no executors yet"
    parts = [f"{free_cores} {'stays' if free_cores == 1 else 'stay'} free (slots.free.cores)"] if free_cores else []
    parts += [f"other applications hold {others}"] if others else []
    of_which = f", of which {' and '.join(parts)}" if parts else ""
    return f"Spark has {cores} {'core' if cores == 1 else 'cores'}{of_which}"


def _count_executor_cores(context: Any) -> int:
    """Returns how many cores the executors have, those that Spark may still start included."""
    conf = context.getConf()
    executors = context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001
    found = [executors.apply(index) for index in range(executors.size())]
    is_local = ONE_PROCESS.match(context.master) is not None
    cores = [some.totalCores() for some in found if is_local or some.id() != "driver"]
    most = conf.get(MAX_EXECUTORS)
    if most is not None and _is_dynamic(conf):
        of_each = int(conf.get("spark.executor.cores") or max(cores, default=1))
        return int(most) * of_each
    return sum(cores)


def _has_unlimited_executors(conf: SparkConf) -> bool:
    return _is_dynamic(conf) and conf.get(MAX_EXECUTORS) is None


def _is_dynamic(conf: SparkConf) -> bool:
    return conf.get("spark.dynamicAllocation.enabled", "false") == "true"


def _context_of(spark: SparkSession) -> SparkContext:
    """Returns the context of a session that the user has brought."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "this is a Spark Connect session, which gives no access to the driver that slots talk to: run the "
            "application where the driver runs, with SparkSession.builder.master(...), or by spark-submit"
        )
    return spark.sparkContext


def check_context(context: SparkContext) -> None:
    """Rejects a context that an application cannot run in, with an error that says why."""
    conf = context.getConf()
    if conf.get("spark.speculation", "false") == "true":
        raise ConfigError(
            "Spark runs with spark.speculation=true: tasks with state must not run twice at a time. Unset it"
        )
    if conf.get("spark.python.worker.killOnIdleTimeout", "false") == "true":
        raise ConfigError(
            "Spark runs with spark.python.worker.killOnIdleTimeout=true: it would kill slots that wait for records. "
            "Unset it"
        )


def encrypts_rpc(context: SparkContext) -> bool:
    """Whether Spark encrypts the connections of its processes: slots and the driver then encrypt theirs, too."""
    conf = context.getConf()
    names = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
    return any(conf.get(name, "false") == "true" for name in names)


def own_session(spark: SparkSession) -> SparkSession:
    """Returns a session of the same Spark for the query alone: the settings of the user's session stay as they are."""
    own = spark.newSession()
    for name, value in OF_THE_QUERY.items():
        own.conf.set(name, value)
    return own
