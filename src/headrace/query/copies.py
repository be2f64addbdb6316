"""Where a follower has its copy of what the tasks hold: in memory, or on a disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.commit.chain import read_delta
from headrace.commit.ledger import Ledger, Standing
from headrace.commit.storage import Storage
from headrace.model.ids import TaskId
from headrace.query.entries import Entries
from headrace.state.engine import Engine


class Part(Engine, Protocol):
    """What one task holds, as of one version: an engine that can only be read, by any number of threads."""

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many entries there are from `low` up to but without `high`."""
        ...


Parts = Mapping[TaskId, Part]


class Copies(Protocol):
    """Brings what the tasks hold from one batch to another."""

    def take(self, storage: Storage, ledger: Ledger, before: Parts) -> Parts:
        """What all tasks hold after the ledger's last batch; `before` is what they held, and stays as it is."""
        ...

    def close(self) -> None: ...


class MemoryCopies:
    """Nothing but what is handed out: versions share what did not change."""

    def take(self, storage: Storage, ledger: Ledger, before: Parts) -> Parts:
        return {task: _advanced(storage, before.get(task), task, at) for task, at in ledger.tasks.items()}

    def close(self) -> None:
        pass


def _advanced(storage: Storage, before: Part | None, task: TaskId, standing: Standing) -> Part:
    """What a task has, from what it had; from nothing if that is not on the way."""
    entries = before if isinstance(before, Entries) else Entries()
    if entries.version == standing.version:
        return entries
    chain = standing.chain
    place = next((at + 1 for at, link in enumerate(chain) if link.version == entries.version), None)
    if place is None:
        entries, place = Entries(), 0
    for link in chain[place:]:
        delta = read_delta(storage, task, link)
        entries = entries.after(delta.changes, delta.version)
    return entries
