"""How long does a host need for the state of a task that it has no copy of?

    python -m benchmarks.recovery [--sizes 10 50 200] [--deltas 1 4 16 64] [--directory .] [--json]

A task's state is in the checkpoint as a snapshot and deltas after it; a restore reads them and fills a store on disk.
The first rows have states of several sizes, as one snapshot. The others have one state, with updates of a tenth of its
keys for every further delta: that is what `checkpoint.max.deltas` limits. The yardstick is a plain LMDB that is filled
with the same entries in one transaction.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_tables
from headrace.checkpoint.files import BlobRef, DeltaRef, digest_of, read_delta
from headrace.checkpoint.restore import LmdbEngineProvider, restore
from headrace.checkpoint.storage import DiskStorage
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import Version

TASK = TaskId(0, 0)
KEY, VALUE = 16, 84  # bytes
MIDDLE = 50  # MB, the state that is restored from several deltas
SHARE = 0.1  # of the keys, in a delta after the first


class Result(NamedTuple):
    """A restore. `megabytes` is the size of the state, `deltas` the length of its chain."""

    megabytes: float
    deltas: int
    seconds: float
    plain: float  # seconds that a plain LMDB takes

    @property
    def speed(self) -> float:
        return self.megabytes / self.seconds


def make_chain(megabytes: float, deltas: int) -> list[Delta]:
    """A snapshot of the whole state, and deltas that each change a share of it."""
    chance, count = random.Random(1), round(megabytes * 1e6 / (KEY + VALUE))
    keys = sorted(b"%016d" % chance.randrange(10**16) for _ in range(count))
    found: list[Delta] = []
    for number in range(deltas):
        some = keys if number == 0 else sorted(chance.sample(keys, max(1, round(count * SHARE))))
        found.append(Delta(Version(number, "a"), tuple((key, chance.randbytes(VALUE)) for key in some)))
    return found


def store_chain(storage: DiskStorage, chain: list[Delta]) -> tuple[DeltaRef, ...]:
    refs: list[DeltaRef] = []
    for delta in chain:
        name, raw = f"snapshots/{delta.version.number}", encode_delta(delta)
        storage.create(name, raw)
        refs.append(DeltaRef(*delta.version, len(delta.changes), BlobRef(name, 0, len(raw), digest_of(raw))))
    return tuple(refs)


def seconds_of(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def fill_plain(folder: Path, chain: list[Delta]) -> None:
    folder.mkdir()
    with lmdb.open(str(folder), map_size=1 << 32) as plain, plain.begin(write=True) as transaction:
        for delta in chain:
            for key, value in delta.changes:
                transaction.put(key, value or b"")


def measure(directory: str, megabytes: float, deltas: int) -> Result:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        storage, provider = DiskStorage(Path(folder) / "checkpoint"), LmdbEngineProvider(f"{folder}/0_0", "id", TASK)
        chain = make_chain(megabytes, deltas)
        refs = store_chain(storage, chain)

        def run() -> None:
            restore(provider, refs[-1].version, lambda: refs, lambda ref: read_delta(storage, TASK, ref))

        result = Result(
            megabytes, deltas, seconds_of(run), seconds_of(lambda: fill_plain(Path(folder) / "lmdb", chain))
        )
        provider.close()
    return result


def measure_all(directory: str, sizes: list[int], deltas: list[int]) -> Iterator[Result]:
    for megabytes in sizes:
        yield measure(directory, megabytes, 1)
    for count in deltas:
        yield measure(directory, MIDDLE, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50, 200], help="MB of state")
    parser.add_argument("--deltas", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--directory", default=".", help="where to put the state for a while: it must be on a disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    steps = measure_all(str(Path(options.directory).resolve()), options.sizes, options.deltas)
    total = len(options.sizes) + len(options.deltas)
    results = list(track(steps, "Measuring", total=total, console=console, transient=True))
    if options.json:
        print(json.dumps([result._asdict() for result in results]))
        return
    table = Table(
        "MB of state", "deltas", "seconds", "MB/s", "times a plain LMDB", title="Restore of a task from the checkpoint"
    )
    for result in results:
        row = (result.megabytes, result.deltas, result.seconds, result.speed, result.seconds / result.plain)
        table.add_row(*(f"{figure:,.4g}" for figure in row))
    console.print(table)
    if options == parser.parse_args([]):
        write_tables("recovery", "Recovery", table)


if __name__ == "__main__":
    main()
