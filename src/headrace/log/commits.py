"""Group commit: what several threads write at the same time becomes one transaction, and one wait for the disk."""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.log.database import Database
from headrace.log.errors import LogBusyError

T = TypeVar("T")
_MOST = 1000  # pieces of work in one transaction


class Work:
    """A piece of writing, and what became of it."""

    __slots__ = ("done", "error", "result", "run")

    def __init__(self, run: Callable[[sqlite3.Connection], Any]) -> None:
        self.run, self.done = run, False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """Whoever comes first writes for all who came meanwhile; no thread is needed for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Work] = deque()
        self._turn = threading.Lock()

    def __call__(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Runs it in a durable transaction, with others or alone. If it raises, it alone is undone."""
        work = Work(run)
        self._waiting.append(work)
        with self._turn:
            while not work.done:
                self._commit()
        if work.error is not None:
            raise work.error
        return work.result

    def _commit(self) -> None:
        works = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
        try:
            with self._database.writing(durable=True) as connection:
                for work in works:
                    _attempt(work, connection)
        except Exception as error:  # noqa: BLE001 - all of them are told
            for work in works:
                work.error, work.done = copy.copy(error), True
        except BaseException:  # this thread was interrupted, before or after the commit
            for work in works:
                work.error, work.done = LogBusyError("another thread was interrupted while it wrote this, too"), True
            raise
        for work in works:
            work.done = True


def _attempt(work: Work, connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT work")
    try:
        work.result = work.run(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - the one who asked for it is told
        work.error = error
        connection.execute("ROLLBACK TO work")
    connection.execute("RELEASE work")
