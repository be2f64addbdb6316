"""The files of an application, which outlive the processes that are killed, and how these are started."""

from __future__ import annotations

import copy
import os
import select
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headrace.checkpoint.files import read_delta
from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.checkpoint.restore import MemoryEngineProvider, restore
from headrace.checkpoint.storage import open_storage
from headrace.log.embedded.file_log import FileLog
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TaskId, TopicPartition
from tests.expected import values_by_key
from tests.faults import programs
from tests.faults.application_run import SETTINGS, STACKS, RunSettings
from tests.faults.kills import Kill

ROOT = Path(__file__).parents[2]
PATIENCE = 600  # seconds; only a run that hangs waits for so long
PATIENCE_MS = 1000 * PATIENCE
Row = tuple[int, bytes | None, bytes | None, int, Any]


class Deployment:
    """The directory of an application: its log, its checkpoint, its local state."""

    def __init__(self, folder: Path, program: str, *, config: dict[str, Any] | None = None, **more: Any) -> None:
        self.folder, self.runs = folder, list[Run]()
        self.program: programs.Program = getattr(programs, program)
        self.settings = RunSettings(program, str(folder), config=config or {}, **more)
        folder.mkdir(parents=True, exist_ok=True)
        with closing(self.log()) as log:
            self.program.begin(log)
        self.fed = self.program.lines

    def moved(self, folder: Path) -> Deployment:
        """The same at another place, where its files are already."""
        other = copy.copy(self)
        other.folder, other.runs = folder, []
        other.settings = msgspec.structs.replace(self.settings, folder=str(folder))
        return other

    def log(self) -> Log:
        return open_log(self.settings.log) if self.settings.log else FileLog(self.folder / "log", clean_every=None)

    def start(self, *kills: Kill, environment: dict[str, str] | None = None) -> Run:
        """Starts the application; it runs until it is killed, or nothing is left to do."""
        path = self._next_settings(*kills)
        self.runs.append(Run(["-m", "tests.faults.application_run", str(path)], path.parent, environment or {}))
        return self.runs[-1]

    def command(self, *options: str, environment: dict[str, str] | None = None) -> Run:
        """Starts it with `headrace run`; it runs until it is ended."""
        path = self._next_settings()
        arguments = ["-m", "headrace", "run", "tests.faults.application_run:app", *options]
        self.runs.append(Run(arguments, path.parent, {**(environment or {}), SETTINGS: str(path)}))
        return self.runs[-1]

    def _next_settings(self, *kills: Kill) -> Path:
        number = len(self.runs)
        path = self.folder / f"run-{number}" / "settings"
        path.parent.mkdir()
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(self.settings, kills=list(kills), run=number)))
        return path

    def run(self, **changes: Any) -> None:
        """Runs in this process until nothing is left to do."""
        with msgspec.structs.replace(self.settings, **changes).application() as app:
            app.drain(PATIENCE_MS)

    def feed(self, count: int) -> None:
        """Writes more input."""
        with closing(self.log()) as log:
            self.program.feed(log, range(self.fed, self.fed + count))
        self.fed += count

    def clear(self) -> None:
        for run in self.runs:
            run.clear()

    def outputs(self) -> dict[TopicPartition, list[Row]]:
        """All that was written, by partition."""
        with closing(self.log()) as log:
            own = [name for name in log.topics() if name not in {"lines", "app-delivered"}]
            places = log.extents(own)
            return {at: [row for chunk in log.read(at, 0) for row in chunk.rows()] for at in sorted(places)}

    def check_outputs(self) -> None:
        """The topics have the test driver's records; with several partitions, every key has the driver's values."""
        found = self.outputs()
        for topic, rows in self.program.expected(self.fed).items():
            written = [row[1:4] for at, some in found.items() if at.topic == topic for row in some]
            if self.program.partitions == 1:
                assert written == rows
            else:
                assert values_by_key(written) == values_by_key(rows)

    def stores(self) -> dict[TaskId, list[tuple[bytes, bytes]]]:
        """The state of every task, byte for byte, as the checkpoint has it."""
        storage = open_storage(self.settings.checkpoint or self.folder / "checkpoint")
        ledger = read_ledger(storage, manifest_numbers(storage)[-1])
        found: dict[TaskId, list[tuple[bytes, bytes]]] = {}
        for task, head in sorted(ledger.tasks.items()):
            load = partial(read_delta, storage, task)
            engine = restore(MemoryEngineProvider(), head.version, lambda chain=head.chain: chain, load).engine
            found[task] = list(engine.scan(b"", None))
        return found

    def tables(self) -> dict[str, list[tuple[str, Any]]]:
        """The stores as the last run has read them before its end."""
        return msgspec.json.decode((self.runs[-1].folder / "tables").read_bytes())


def wait_until(reached: Callable[[], bool], run: Run) -> None:
    """Until something is so, while a run goes on."""
    event = threading.Event()
    for _ in range(PATIENCE * 20):
        if reached():
            return
        assert run.process.poll() is None, run.last_words
        event.wait(0.05)
    raise AssertionError(f"it was never so: {run.ask_for_stacks()}")


class Feedable(Protocol):
    """Input to which lines can be added; `fed` is how many there are."""

    fed: int

    def feed(self, count: int, /) -> None: ...


@contextmanager
def under_load(place: Feedable, read: Callable[[], int], ahead: int) -> Iterator[None]:
    """Writes on and on, so many lines more than have been read."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.02):
            if place.fed < read() + ahead:
                place.feed(10)

    thread = threading.Thread(target=write, name="writes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Run:
    """A process, and all that it started: they share a session, which is how those that it leaves are found."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def last_words(self) -> str:
        """For who has to find out why it has ended."""
        return f"exit code {self.process.poll()}: ... {self.said[-6000:]}"

    def ask_for_stacks(self) -> str:
        """Has a run that hangs write where its threads are, and returns its last words."""
        self.process.send_signal(STACKS)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        return self.last_words

    def landed(self) -> int:
        return len(list(self.folder.glob("landed-*")))

    def victims(self, number: int) -> list[int]:
        """Whom a kill has met; nobody as long as it has not."""
        file = self.folder / f"landed-{number}"
        return [int(process) for process in file.read_text().split()] if file.exists() else []

    def end(self) -> int:
        """Waits for the end of the process itself; what it leaves behind goes on."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {PATIENCE} s: {self.ask_for_stacks()}") from None

    def ends_well(self) -> None:
        assert self.end() == 0, self.last_words

    def ends_by_kill(self) -> None:
        assert self.end() == -signal.SIGKILL, f"it was not killed: {self.last_words}"
        assert self.landed()

    def clear(self) -> None:
        """Ends all that is left of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def members(session: int) -> Iterator[int]:
    """The processes of a session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(entry.name)


def by_key(rows: Sequence[Row]) -> dict[str, list[tuple[str, int]]]:
    """Values and timestamps of every key, in their order."""
    found = defaultdict[str, list[tuple[str, int]]](list)
    for _, key, value, timestamp, _ in rows:
        assert key is not None
        assert value is not None
        found[key.decode()].append((value.decode(), timestamp))
    return found


def gone(session: int) -> bool:
    """Whether all processes of a session end by themselves."""
    for process in members(session):
        try:
            ending = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        with os.fdopen(ending):
            if not select.select([ending], [], [], PATIENCE)[0]:
                return False
    return True
