"""Proves that a source survives crashes: `check_source`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from typing import Any

from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.connect.source import SOURCE_STEPS, SourceRunner
from headrace.log.embedded.file_log import FileLog
from headrace.topology.connectors import Source, SourceSpec


class _CrashError(BaseException):
    """Ends a runner in the middle of a step. It is no `Exception`, so nothing catches it."""


def check_source(make: Callable[[], Source], expected: Sequence[tuple[Any, Any]], *, max_records: int = 2) -> None:
    """Runs a source that is crashed before and after every step of every batch, and compares what the log has.

    `make` makes the source anew, for each crash; what it reads must be the same each time. `expected` are the keys and
    values that it has, in order. Batches have `max_records`, few, so that there are many moments to crash at. Raises
    an `AssertionError` that names the crash after which a record was missing, repeated or changed.

    >>> from headrace.connect import GeneratorSource
    >>> check_source(lambda: GeneratorSource("n", lambda n: (n, n), limit=3), [(0, 0), (1, 1), (2, 2)])
    """
    with tempfile.TemporaryDirectory() as directory, closing(FileLog(directory)) as log:
        trial = _Trial(log, make, expected, max_records)
        trial.run(None, 1)
        for name in SOURCE_STEPS:
            for moment in (f"before {name}", f"after {name}"):
                for occurrence in count(1):
                    if not trial.run(moment, occurrence):
                        break


class _Trial:
    """Runs the source again and again, each time into a new topic."""

    def __init__(
        self, log: FileLog, make: Callable[[], Source], expected: Sequence[tuple[Any, Any]], max_records: int
    ) -> None:
        self._log, self._make, self._expected, self._max_records = log, make, [*expected], max_records
        self._numbers = count()

    def run(self, moment: str | None, nth: int) -> bool:
        """Crashes at the n-th occurrence of a moment, runs to the end, and compares. Returns False without a crash."""
        left, has_crashed, name = nth, False, f"trial-{next(self._numbers)}"

        def crash(now: str) -> None:
            nonlocal left
            left -= now == moment
            if now == moment and left == 0:
                raise _CrashError

        try:
            self._run_to_end(name, crash)
        except _CrashError:
            has_crashed = True
            self._run_to_end(name, ignore_step)
        found = read_pairs(self._log, self._spec(name))
        if found != self._expected:
            when = f"after a crash {moment}, number {nth}," if has_crashed else "without a crash"
            raise AssertionError(f"{when} the log has {found}, and the source {self._expected}")
        return has_crashed

    def _spec(self, topic: str) -> SourceSpec:
        source = self._make()
        return SourceSpec(source=source, topic=topic, key=source.key, value=source.value)

    def _run_to_end(self, name: str, at_step: AtStep) -> None:
        """Runs until a read finds nothing. An error of the source is raised: this is a test."""
        runner = SourceRunner(
            name, self._spec(name), self._log, max_records=self._max_records, read_timeout=0.0, at_step=at_step
        )
        while not runner.is_caught_up:
            runner.advance()
            if (error := runner.report().error) is not None:
                raise AssertionError(f"the source failed: {error}")
        runner.close()


def read_pairs(log: FileLog, spec: SourceSpec) -> list[tuple[Any, Any]]:
    """Returns the keys and values of a source's topic, decoded, partition by partition."""
    return [
        (None if key is None else spec.key.decode(key), None if value is None else spec.value.decode(value))
        for at, extent in log.extents([spec.topic]).items()
        for chunk in log.read(at, extent.earliest, extent.end)
        for _, key, value, _, _ in chunk.rows()
    ]
