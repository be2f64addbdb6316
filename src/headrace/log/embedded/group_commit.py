"""Group commit: what several threads write at the same time becomes one transaction, and one wait for the disk."""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from headrace.errors import LogBusyError
from headrace.log.embedded.database import Database

T = TypeVar("T")
Order = TypeVar("Order")
_MOST = 1000  # pieces of work in one transaction


class Work:
    """A piece of writing, and what became of it."""

    __slots__ = ("done", "error", "leads", "order", "result", "run", "turn")

    def __init__(self, run: Callable[[sqlite3.Connection, list[Any]], list[Any]], order: Any) -> None:
        self.run, self.order = run, order
        self.done = self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.turn = threading.Lock()  # released when the work is done, or its thread is to write for all
        self.turn.acquire()

    def finish(self) -> None:
        self.done = True
        self.turn.release()


class GroupCommit:
    """Whoever comes first writes for all who came meanwhile, then leaves that to one of those who came since.

    No thread of its own is needed for it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        self._is_led = False

    def __call__(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Runs it in a durable transaction, with others or alone. If it raises, it alone is undone."""
        return self.together(lambda connection, _: [run(connection)], None)

    def together(self, run: Callable[[sqlite3.Connection, list[Order]], list[T]], order: Order) -> T:
        """The same for orders that are best carried out together: `run` gets several, and gives a result for each."""
        work = Work(run, order)
        with self._lock:
            self._waiting.append(work)
            work.leads, self._is_led = not self._is_led, True
        try:
            if not work.leads:
                work.turn.acquire()
            if not work.done:
                self._commit()
        except BaseException:  # interrupted while it waited or wrote
            self._give_up(work)
            raise
        if work.leads:
            self._pass_on()
        if work.error is not None:
            raise work.error
        return work.result

    def _commit(self) -> None:
        with self._lock:
            works = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
        try:
            with self._database.writing(durable=True) as connection:
                for run, alike in groupby(works, key=attrgetter("run")):
                    _attempt(run, list(alike), connection)
        except Exception as error:  # noqa: BLE001 - all of them are told
            for work in works:
                work.error = copy.copy(error)
        except BaseException:
            for work in works:
                work.error = LogBusyError("another thread was interrupted while it wrote this, too: try again")
            raise
        finally:
            for work in works:
                work.finish()

    def _pass_on(self) -> None:
        """Lets the next one write for all, if there is one."""
        with self._lock:
            self._is_led = bool(self._waiting)
            if self._is_led:
                self._waiting[0].leads = True
                self._waiting[0].turn.release()

    def _give_up(self, work: Work) -> None:
        with self._lock:
            if work in self._waiting:
                self._waiting.remove(work)
        if work.leads:
            self._pass_on()


def _attempt(run: Callable[..., list[Any]], works: list[Work], connection: sqlite3.Connection) -> None:
    """All at once, or, if that does not work out, one by one."""
    connection.execute("SAVEPOINT work")
    try:
        for work, result in zip(works, run(connection, [work.order for work in works]), strict=True):
            work.result = result
    except Exception as error:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.ProgrammingError):
            raise  # the database, not what was asked of it
        works[0].error = TypeError(str(error)) if isinstance(error, sqlite3.Error) else error
        connection.execute("ROLLBACK TO work")
    connection.execute("RELEASE work")
    if works[0].error is not None and len(works) > 1:
        works[0].error = None
        for work in works:
            _attempt(run, [work], connection)
