"""Group commit: writes of several threads share one transaction, and one wait for the disk.

The first thread that finds no commit running becomes the leader: it commits its own work and all work that is waiting.
Threads whose work is not done when a commit ends elect the next leader among them. There is no background thread.
"""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from headrace.errors import LogBusyError
from headrace.log.embedded.database import Database

T = TypeVar("T")
Item = TypeVar("Item")
_MAX_WORKS = 1000  # in one transaction


class Work:
    """A write that waits for a commit, and its outcome."""

    __slots__ = ("error", "is_done", "item", "result", "write")

    def __init__(self, write: Callable[[sqlite3.Connection, list[Any]], list[Any]], item: Any) -> None:
        self.write, self.item = write, item
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """Runs writes in durable transactions of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._waiting: list[Work] = []
        self._has_leader = False

    def run(self, write: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a write in a transaction, alone or with others. If it raises, only its own changes are rolled back."""
        return self.run_together(lambda connection, _: [write(connection)], None)

    def run_together(self, write: Callable[[sqlite3.Connection, list[Item]], list[T]], item: Item) -> T:
        """Like `run`, for writes that are faster together: `write` gets several items and returns a result for each."""
        work = Work(write, item)
        if self._leads(work):
            self._commit()
        if work.error is not None:
            raise work.error
        return work.result

    def _leads(self, work: Work) -> bool:
        """Waits until the work is done or its thread becomes the leader."""
        with self._changed:
            self._waiting.append(work)
            try:
                while self._has_leader and not work.is_done:
                    self._changed.wait()
            except BaseException:  # the thread was interrupted
                if work in self._waiting:
                    self._waiting.remove(work)
                raise
            if not work.is_done:
                self._has_leader = True
            return not work.is_done

    def _commit(self) -> None:
        works: list[Work] = []
        try:
            with self._changed:
                works, self._waiting = self._waiting[:_MAX_WORKS], self._waiting[_MAX_WORKS:]
            with self._database.writing(durable=True) as connection:
                for write, group in groupby(works, key=attrgetter("write")):
                    _execute(write, list(group), connection)
        except Exception as error:  # noqa: BLE001 - every thread raises it
            for work in works:
                work.error = copy.copy(error)
        except BaseException:
            for work in works:
                work.error = LogBusyError("another thread was interrupted while it wrote this, too: try again")
            raise
        finally:
            with self._changed:
                for work in works:
                    work.is_done = True
                self._has_leader = False
                self._changed.notify_all()


def _execute(write: Callable[..., list[Any]], works: list[Work], connection: sqlite3.Connection) -> None:
    """Executes works in one call, or one by one if that fails."""
    connection.execute("SAVEPOINT work")
    try:
        for work, result in zip(works, write(connection, [work.item for work in works]), strict=True):
            work.result = result
    except Exception as error:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.ProgrammingError):
            raise  # the database failed, not this write
        connection.execute("ROLLBACK TO work")
        if len(works) == 1:
            works[0].error = TypeError(str(error)) if isinstance(error, sqlite3.Error) else error
        else:
            for work in works:
                _execute(write, [work], connection)
    connection.execute("RELEASE work")
