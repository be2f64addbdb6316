"""Runs the batches of a task as production may run them: aborted, undone, run again, with restored state.

    fault     what happens after a first attempt                                       what production calls it
    undo      it is committed, and that commit is undone                               the commit is lost
    abort     that, and a second attempt fails after its records                       a slot fails
    loss      that, and the state is deleted and restored from its deltas              a host is lost

Batches without records run between the others, as ticks do. After each fault the task is made anew, as a slot does it:
processors are made by their suppliers and initialised again, and know only what their stores know. A batch that ran
twice must have done the same twice.

`restore`, `TaskState` and `Task` are those of production.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random

from headrace.checkpoint.files import BlobRef, DeltaRef
from headrace.checkpoint.restore import MemoryEngineProvider, restore
from headrace.runtime.environment import Result
from headrace.runtime.rows import Decoded, Inputs, Output, Row
from headrace.runtime.task import Task
from headrace.state.delta import decode_delta, encode_delta
from headrace.state.engine import Engine, Version

_SNAPSHOT = 50  # deltas after which the state is written as a whole
_NO_BLOB = BlobRef("", 0, 0, b"")
_FAULTS = ("abort", "undo", "loss")
_LONGEST_CUT = 3  # records: longer batches would leave fewer of them to run again


class InjectedFault(BaseException):
    """Ends an attempt at a batch. No handler of records catches it."""


class FaultInjector:
    """Runs the batches of one task, with faults. `task` is another object after most of them."""

    def __init__(self, seed: int, make_task: Callable[[Engine], Task]) -> None:
        self._random, self._seed, self._make = Random(seed), seed, make_task  # noqa: S311 - it is to be repeatable
        self._provider = MemoryEngineProvider()
        self._deltas: dict[Version, bytes] = {}  # encoded, in their order: what a checkpoint has
        self._fresh: list[Row] = []  # rows read since the last commit
        self.count = 0  # injected faults
        self.task = make_task(self._provider.open())
        self._can_lose = all(spec.logging for spec in self.task.state.specs.values())

    def read(self, row: Row) -> Decoded | None:
        """Decodes a row; it may be decoded again when its batch runs again."""
        self._fresh.append(row)
        return self.task.read(row)

    def cut(self, rows: int) -> int:
        """Chooses how many of the rows that wait go into the next batch."""
        return self._random.randint(1, min(rows, _LONGEST_CUT))

    def run(self, heads: list[Decoded], waiting: list[Decoded], clock: int, version: Version) -> Result:
        """Runs a batch. `heads` and `waiting`, which are decoded but wait for their turn, follow the task in place."""
        fault = self._choose()
        if fault is not None:
            self.count += 1
        base = self.task.state.version
        first: Result | None = None
        if fault is not None:
            first = self._attempt(heads, clock, Version(version.number, "lost"))
            self._restore(base)
            self._make_anew(heads, waiting)
        if fault == "abort":
            self._abort(heads, clock, version)
            self._make_anew(heads, waiting)
        elif fault == "loss":
            self._provider.clear()
            self._restore(base)
            self._make_anew(heads, waiting)
        result = self._attempt(heads, clock, version)
        if first is not None:
            self._check_same(first, result, heads)
        self._fresh.clear()
        self._keep(result)
        return result

    def _choose(self) -> str | None:
        if self._random.random() < 1 / 4 or self.task.state.has_changes:  # a test has put something into a store
            return None
        fault = self._random.choice(_FAULTS)
        return "undo" if fault == "loss" and not self._can_lose else fault

    def recover(self, heads: list[Decoded], waiting: list[Decoded]) -> None:
        """Makes the task anew after an attempt that failed."""
        self._make_anew(heads, waiting)

    @property
    def wants_empty_batch(self) -> bool:
        return self._random.random() < 1 / 8

    def _attempt(self, heads: Sequence[Decoded], clock: int, version: Version) -> Result:
        return self.task.run(Inputs(decoded=heads), clock=clock, version=version)

    def _abort(self, heads: Sequence[Decoded], clock: int, version: Version) -> None:
        """Runs the records of a batch, and fails before it is committed."""

        def rows() -> Generator[Decoded]:
            yield from heads
            raise InjectedFault

        try:
            self.task.run(Inputs(decoded=rows()), clock=clock, version=version)  # pyright: ignore[reportArgumentType]
        except InjectedFault:
            return

    def _restore(self, wanted: Version | None) -> None:
        chain = tuple(DeltaRef(*version, 0, _NO_BLOB) for version in self._deltas)
        restore(self._provider, wanted, lambda: chain, lambda ref: decode_delta(self._deltas[ref.version]))

    def _make_anew(self, heads: list[Decoded], waiting: list[Decoded]) -> None:
        """Makes the task again. Rows read since the last commit are read again, the others find their operator."""
        self.task = self._make(self._provider.open())
        again = {id(row): self.task.read(row) for row in self._fresh}
        for decoded in (heads, waiting):
            for place, (row, key, value, timestamp, _) in enumerate(decoded):
                read = again.get(id(row))
                decoded[place] = read or (row, key, value, timestamp, self.task.operator_of(row[0]))

    def _keep(self, result: Result) -> None:
        self._deltas[result.delta.version] = encode_delta(result.delta)
        if len(self._deltas) > _SNAPSHOT:
            self._deltas = {result.delta.version: encode_delta(self.task.state.everything())}

    def _check_same(self, first: Result, second: Result, heads: Sequence[Decoded]) -> None:
        before, after = list(map(_plain, first.outputs)), list(map(_plain, second.outputs))
        if before != after:
            what = f"wrote {_show(before)} the first time, and {_show(after)} the second"
        elif first.dropped != second.dropped:
            what = f"dropped {first.dropped} the first time, and {second.dropped} the second"
        elif first.delta.changes != second.delta.changes:
            what = "changed its stores in another way the second time"
        else:
            return
        at = ", ".join(f"{row[0]} at offset {row[2]}" for row, *_ in heads) or "a batch without records"
        raise AssertionError(
            f"faults={self._seed}: {at} ran twice, as a batch may after a failure, and {what}. Keep state in stores, "
            "not in attributes of a processor or in variables; use context.wall_clock instead of the time of day, and "
            "nothing random"
        )


def _plain(output: Output) -> tuple[object, ...]:
    return output[:6]


def _show(outputs: Sequence[tuple[object, ...]]) -> str:
    shown = [f"{topic}: {key!r}={value!r}" for topic, _, key, value, *_ in outputs[:5]]
    return "[" + ", ".join(shown) + (", …" if len(outputs) > 5 else "") + "]"
