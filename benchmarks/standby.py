"""How soon does an instance that stands by take over, and how far is a replica behind?

    python benchmarks/standby.py [--takeovers 5] [--hangs 1] [--json]

All of it with `headrace run`, `headrace run --standby` and `headrace replica`, on an embedded log that is written to
all the time. The instance that runs is killed, which one on the same machine sees at once; or it is stopped (SIGSTOP):
nobody sees that but by its silence, as if it were on another machine, and the lease must run out. Times are from there
to the first batch of the next instance that has read something. The lag of a replica is that of its answers over HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from headrace.checkpoint.coordinator import CommitOptions
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.storage import DiskStorage
from headrace.errors import StreamsError
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.query import Follower

PROGRAM = """
from headrace import Application, StreamsBuilder, serde

def app():
    builder = StreamsBuilder()
    words = builder.stream("words", key=serde.STRING, value=serde.STRING)
    words.group_by_key(key=serde.STRING, value=serde.STRING).count(store="counts")
    return Application("counting", builder.build(), "file:log", checkpoint="checkpoint", state_dir="state")
"""
LEASE = CommitOptions().lease_ms / 1000  # seconds
RATE, PATIENCE = 200, 300.0  # records a second; seconds


class Place:
    """A directory with a log, and the processes that live from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "counting.py").write_text(PROGRAM)
        self.log = FileLog(folder / "log", clean_every=None)
        self.log.create_topic("words", 2)
        self.follower, self.disk = Follower.open(folder / "checkpoint"), DiskStorage(folder / "checkpoint")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A process, and the file that has what it says."""
        said = self.folder / f"said-{len(self.processes)}"
        with said.open("wb") as out:
            command = [sys.executable, "-m", "headrace", *arguments]
            process = subprocess.Popen(  # noqa: S603 - our own
                command, cwd=self.folder, stdout=out, stderr=out, start_new_session=True
            )
        self.processes.append(process)
        return process, said

    def standby(self) -> subprocess.Popen[bytes]:
        process, said = self.start("run", "counting:app", "--standby")
        wait_for(lambda: "stands by" in said.read_text() or process.poll() is not None)
        if process.poll() is not None:
            raise SystemExit(said.read_text())
        return process

    def read(self) -> tuple[int, int]:
        """The epoch of the last batch, and how many records have been read."""
        try:
            snapshot = self.follower.refresh()
        except StreamsError:
            return 0, 0
        return snapshot.epoch, sum(snapshot.position.offsets.values())

    @contextmanager
    def under_load(self) -> Iterator[None]:
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.1):
                for part in range(2):
                    keys = [b"key-%d" % number for number in range(RATE // 20)]
                    records = Records(keys, keys, [int(time.time() * 1000)] * len(keys))
                    self.log.append([(TopicPartition("words", part), records)])

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for process in self.processes:
                process.kill()
                process.wait()


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > end:
            raise SystemExit("it takes too long: see what the processes say")
        time.sleep(0.02)


def takeover(place: Place, running: subprocess.Popen[bytes], by: int) -> float:
    """Seconds from the signal to the first batch that has read something in another epoch."""
    wait_for(lambda: place.read()[1] > 0)
    epoch, _ = place.read()
    begun = time.monotonic()
    os.kill(running.pid, by)
    wait_for(lambda: place.read()[0] > epoch)
    _, known = place.read()
    wait_for(lambda: place.read()[1] > known)
    took = time.monotonic() - begun
    running.kill()
    return took


def lags(place: Place, seconds: float) -> list[int]:
    """How many batches the answers of a replica are behind the checkpoint, at many moments."""
    _, said = place.start("replica", "--checkpoint", "checkpoint", "--no-token", "--port", "0")
    wait_for(lambda: "http://" in said.read_text())
    found = re.search(r"http://[\d.:]+", said.read_text())
    url = found[0] if found else ""
    behind, end = list[int](), time.monotonic() + seconds
    while time.monotonic() < end:
        last = manifest_numbers(place.disk)[-1]
        with urlopen(f"{url}/stores/counts", timeout=30) as response:  # noqa: S310
            behind.append(max(0, last - json.load(response)["position"]["batch"]))
        time.sleep(0.05)
    return behind


def measured(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        with place.under_load():
            running, _ = place.start("run", "counting:app")
            wait_for(lambda: place.read()[1] > 0)
            behind = lags(place, 5.0)
            took: dict[int, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
            for by in [signal.SIGKILL] * args.takeovers + [signal.SIGSTOP] * args.hangs:
                waiting = place.standby()
                took[by].append(takeover(place, running, by))
                running = waiting
        return {
            "killed": took[signal.SIGKILL],
            "silent": took[signal.SIGSTOP],
            "lag": [median(behind), max(behind)],
            "lease": LEASE,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--hangs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measured(args)
    if args.json:
        print(json.dumps(found))
        return
    for name in ("killed", "silent"):
        if found[name]:
            middle, longest = median(found[name]), max(found[name])
            shares = f"{middle / LEASE:.2f} of a lease ({LEASE:g} s), {3 * middle / LEASE:.2f} of a heartbeat"
            print(f"{name:8} taken over in {middle:5.1f} s (at most {longest:.1f}): {shares}")
    print(f"a replica is {found['lag'][0]:g} batches behind (at most {found['lag'][1]})")


if __name__ == "__main__":
    main()
