"""The state of all tasks after one batch: nothing in it ever changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.commit.fingerprint import Fingerprint
from headrace.commit.ledger import Ledger
from headrace.model.ids import TaskId
from headrace.query.answering import answer
from headrace.query.catalog import Catalog
from headrace.query.copies import Part
from headrace.query.copies import Parts as Copied
from headrace.query.entries import Entries
from headrace.query.parts import Parts
from headrace.query.position import Position, QueryResult
from headrace.query.queries import Query
from headrace.query.views import View, view_of
from headrace.state.keys import successor
from headrace.state.task_state import TaskState


@dataclass(frozen=True)
class Snapshot:
    """All stores as of `position.batch`; `clock` is the time of that batch."""

    position: Position
    clock: int
    checkpoint: str
    application: str
    epoch: int
    delivered: int  # at least the batches up to this one, when the batch was committed
    dropped: Mapping[str, int]
    sizes: Mapping[TaskId, int]  # bytes of the state of each task in the checkpoint
    catalog: Catalog
    entries: Copied
    fingerprint: Fingerprint | None
    _opened: dict[TaskId, TaskState] = field(default_factory=dict[TaskId, TaskState])

    @classmethod
    def of(cls, ledger: Ledger, catalog: Catalog, entries: Copied) -> Snapshot:
        return cls(
            position=Position(ledger.number, dict(ledger.positions)),
            clock=ledger.clock,
            checkpoint=ledger.checkpoint,
            application=ledger.application,
            epoch=ledger.epoch,
            delivered=ledger.delivered_before,
            dropped=dict(ledger.dropped),
            sizes={task: sum(link.piece.size for link in at.chain) for task, at in ledger.tasks.items()},
            catalog=catalog,
            entries=entries,
            fingerprint=ledger.fingerprint,
        )

    @cached_property
    def batch(self) -> int:
        return self.position.batch

    def store(self, name: str) -> Any:
        """A view by the kind of the store, for reading."""
        return self.view(name)

    def view(self, name: str) -> View:
        return view_of(self.catalog.shelf(name), lambda: self.parts(name))

    def query(self, store: str, query: Query) -> QueryResult:
        return QueryResult(answer(self.view(store), self.catalog.shelf(store), query), self.position)

    def parts(self, store: str) -> Parts:
        shelf = self.catalog.shelf(store)
        stores: list[Any] = [self._state(task).store(store) for task in shelf.tasks]
        return Parts(stores, shelf.key.encode)

    def count(self, store: str) -> int:
        """How many entries a store has; they are not looked at."""
        found = 0
        for task in self.catalog.shelf(store).tasks:
            prefix = self._state(task).table(store).prefix
            found += self._entries(task).count(prefix, successor(prefix))
        return found

    def forget(self) -> None:
        """Lets go of decoded values: a newer one is asked from now on."""
        self._opened.clear()

    def _state(self, task: TaskId) -> TaskState:
        # Two threads may both open it; they open the same, and either will do.
        found = self._opened.get(task)
        if found is None:
            found = self._opened[task] = self.catalog.open(task, self._entries(task))
        return found

    def _entries(self, task: TaskId) -> Part:
        found = self.entries.get(task)
        return Entries() if found is None else found


def view_of_last(name: str, last: Callable[[], Snapshot]) -> View:
    """A view by the kind of the store, each of whose calls is answered as of the snapshot that is the last one then."""
    return view_of(last().catalog.shelf(name), lambda: last().parts(name))
