"""Where a consumer is in each of its partitions, and the records from there on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Literal

from headrace.errors import StreamsError
from headrace.log.errors import OffsetOutOfRangeError
from headrace.log.protocol import Extent, Log, LogRow
from headrace.model.ids import TopicPartition

Reset = Literal["earliest", "latest", "none"]
Taken = tuple[TopicPartition, LogRow]


class Fetcher:
    """Takes records from partitions in turn; `positions` are the offsets that come next."""

    def __init__(self, log: Log, reset: Reset) -> None:
        self._log, self._reset = log, reset
        self.positions: dict[TopicPartition, int] = {}
        self._open: dict[TopicPartition, tuple[Iterator[LogRow], int]] = {}  # records, and the offset they go up to
        self._turn = 0

    def add(self, partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]) -> None:
        """Starts to read partitions, where somebody stopped, or where the policy says."""
        fresh = [at for at in partitions if at not in committed]
        extents = self._extents(fresh)
        self.positions.update({at: committed[at] for at in partitions if at in committed})
        self.positions.update({at: self._by_policy(at, extents[at]) for at in fresh})

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self.positions.pop(at, None)
            self._open.pop(at, None)

    def move(self, at: TopicPartition, offset: int) -> None:
        self._open.pop(at, None)
        self.positions[at] = offset

    def rewind(self, untaken: Iterable[Taken]) -> None:
        """Gives records back, the first ones of each partition last."""
        for at, row in untaken:
            if row[0] < self.positions[at]:
                self.move(at, row[0])

    def take(self, limit: int) -> list[Taken]:
        """Some records, at most `limit`, of whatever partitions have some."""
        self._open_more()
        order = sorted(self._open)
        self._turn += 1
        taken: list[Taken] = []
        for i in range(len(order)):
            at = order[(self._turn + i) % len(order)]
            try:
                taken += self._take_from(at, limit - len(taken))
            except StreamsError:
                if not taken:
                    raise
                break  # what was taken counts; the next look meets the trouble again, if it is still there
        return taken

    def _take_from(self, at: TopicPartition, limit: int) -> list[Taken]:
        rows, end = self._open[at]
        taken: list[Taken] = []
        try:
            for row in islice(rows, limit):
                taken.append((at, row))
                self.positions[at] = row[0] + 1
        except OffsetOutOfRangeError:  # removed while it was read: the next look decides where to go on
            del self._open[at]
            return taken
        except StreamsError:
            del self._open[at]
            if not taken:
                raise
            return taken
        if len(taken) < limit:  # what follows the last record up to the end was compacted away
            del self._open[at]
            self.positions[at] = end
        return taken

    def _open_more(self) -> None:
        idle = [at for at in self.positions if at not in self._open]
        for at, extent in self._extents(idle).items():
            if not extent.earliest <= self.positions[at] <= extent.end:
                self.positions[at] = self._by_policy(at, extent)
            start = self.positions[at]
            if start < extent.end:
                with suppress(OffsetOutOfRangeError):  # removed since: the next look decides where to go on
                    chunks = self._log.read(at, start, extent.end)
                    self._open[at] = ((row for chunk in chunks for row in chunk.rows()), extent.end)

    def _extents(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        wanted = set(partitions)
        extents = self._log.extents(sorted({at.topic for at in wanted}))
        return {at: extent for at, extent in extents.items() if at in wanted}

    def _by_policy(self, at: TopicPartition, extent: Extent) -> int:
        if self._reset == "none":
            is_known = at in self.positions
            where = f"{self.positions[at]}, which is not there" if is_known else "nowhere: nothing is committed"
            raise OffsetOutOfRangeError(
                f"{at} would be read from {where}, and auto_offset_reset is 'none': seek to one of {extent.earliest} "
                f"to {extent.end}, or choose 'earliest' or 'latest'",
                at=at, earliest=extent.earliest, end=extent.end,
            )  # fmt: skip
        return extent.earliest if self._reset == "earliest" else extent.end
