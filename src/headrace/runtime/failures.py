"""Handles records that cannot be decoded, processed or encoded: fail, drop the record, or write a dead letter."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.errors import ProcessingError, SerializationError, StreamsError
from headrace.model.ids import TaskId
from headrace.model.record import Headers, Record
from headrace.runtime.environment import CurrentRecord, Emit
from headrace.runtime.rows import Output, PartitionBatch

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """Where a record failed; a user's exception handler gets it with the record and the error."""

    node: str
    task_id: TaskId
    topic: str | None
    partition: int | None
    offset: int | None


# "fail", "continue" or "dead_letter", or a function of (failure, record, error) that returns one of them.
Handler = str | Callable[[Failure, Record, Exception], str]


@dataclass(frozen=True, slots=True)
class Handlers:
    """The policy for each place where a record can fail."""

    deserialization: Handler = "fail"
    processing: Handler = "fail"
    production: Handler = "fail"
    dead_letter_topic: str | None = None
    log_record_values: bool = False  # messages of exceptions, which may quote a record, go to the log


class Place(NamedTuple):
    """The node that is called, and the record, of the log or of another task, that caused the call.

    >>> str(Place("KSTREAM-MAP-1", "in", 0, 7))
    'KSTREAM-MAP-1 at in/0, offset 7'
    """

    node: str
    topic: str = ""
    partition: int = -1
    offset: int = -1  # -1 while a punctuation runs

    def __str__(self) -> str:
        record = f"{self.topic}/{self.partition}, offset {self.offset}" if self.topic else "a punctuation"
        return f"{self.node} at {record}"


class CountDrop(Protocol):
    """Counts a record that a node drops. A dead letter is not written to the topic of dropped records as well."""

    def __call__(self, node: str, reason: str, *, is_dead_letter: bool = False) -> None: ...


class Failures:
    """Applies the handlers, writes dead letters, and counts dropped records.

    `watch` is called before every call of a node that runs functions of the user. An exception of `watch` counts as an
    error of the record. `on_dropped` is called with the error of a dropped record. `explain` returns sentences about
    the likely cause of an error, each after a space.
    """

    def __init__(
        self,
        handlers: Handlers,
        task_id: TaskId,
        here: CurrentRecord,
        outbox: list[Output],
        drop: CountDrop,
        watch: Callable[[Place], None] | None = None,
        on_dropped: Callable[[Exception], None] | None = None,
        explain: Callable[[str, Record, Exception], str] = lambda node, record, error: "",
    ) -> None:
        self.handlers, self.task_id, self.here, self.outbox, self.drop = handlers, task_id, here, outbox, drop
        self.watch, self._on_dropped, self._explain = watch, on_dropped, explain
        # The column that a node processes now: node, batch, places of the records in the batch, iterator over the rest.
        self._column: tuple[str, PartitionBatch, Sequence[int], Iterator[Any]] | None = None

    def deserialization(self, node: str, part: str, error: Exception) -> None:
        row = self.here.row
        record = Record(row[3], row[4], row[5], row[6]) if row else Record(None, None, -1)
        reason = f"{node} cannot decode the {part} of {self._place()}: {error}. Check the serde of the source."
        self._decide(self.handlers.deserialization, node, record, error, SerializationError(reason), "deserialization")

    def processing(self, node: str, record: Record, error: Exception) -> None:
        reason = f"{node} failed on {self._place()}: {type(error).__name__}: {error}"
        hint = self._explain(node, record, error)
        reason += f".{hint}".rstrip(".") if hint else ""
        self._decide(self.handlers.processing, node, record, error, ProcessingError(reason), "processing")

    def production(self, node: str, record: Record, error: Exception) -> None:
        kinds = f"the key is a {type(record.key).__name__}, the value a {type(record.value).__name__}"
        remedy = f" Check the serdes ({kinds}): of to(), or of the group_by, join or repartition that makes the topic."
        hint = self._explain(node, record, error) or remedy
        reason = f"{node} cannot encode what became of {self._place()}: {error}.{hint}"
        self._decide(self.handlers.production, node, record, error, SerializationError(reason), "production")

    def guard(self, node: str, run: Emit) -> Emit:
        """Wraps `run` so that its errors are handled; an error that a node below has reported passes through."""
        if self.watch is not None:
            run = self._watched(node, run, self.watch)

        def guarded(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                run(key, value, timestamp, headers)
            except StreamsError:
                raise
            except SystemExit as error:
                self.processing(node, Record(key, value, timestamp, headers), _exit_error(error))
            except Exception as error:  # noqa: BLE001 -- user code may raise anything
                self.processing(node, Record(key, value, timestamp, headers), error)

        return guarded

    def _watched(self, node: str, run: Emit, watch: Callable[[Place], None]) -> Emit:
        def watched(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            watch(self.place_of(node))
            run(key, value, timestamp, headers)

        return watched

    def guard_punctuation(self, node: str, run: Callable[[int], None]) -> Callable[[int], None]:
        """Does what `guard` does, for a function that a punctuation calls."""

        def guarded(timestamp: int) -> None:
            try:
                run(timestamp)
            except StreamsError:
                raise
            except SystemExit as error:
                self.processing(node, Record(None, None, timestamp), _exit_error(error))
            except Exception as error:  # noqa: BLE001 -- user code may raise anything
                self.processing(node, Record(None, None, timestamp), error)

        return guarded

    def guard_columns(self, node: str, run: Callable[[T], R | None]) -> Callable[[T], R | None]:
        """Wraps a function of many records without side effects: returns None if `run` raises or takes too long.

        The caller then processes the records one by one.
        """

        def guarded(columns: T) -> R | None:
            try:
                return run(columns)
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- user code may raise anything
                log.debug("%s: %r with many records at once; they are taken one by one", node, error)
                return None
            finally:
                self._column = None

        return guarded

    def enter_column(
        self, node: str, values: Sequence[Any], batch: PartitionBatch, places: Sequence[int]
    ) -> Iterator[Any]:
        """Returns an iterator over the values that a node takes. `place_of` derives the current record from it."""
        found = iter(values)
        self._column = node, batch, places, found
        return found

    def _decide(
        self, handler: Handler, node: str, record: Record, error: Exception, failed: StreamsError, what: str
    ) -> None:
        failed.summary = f"{node}: {what} error on {self._place()}: {type(error).__name__}"
        response = handler if isinstance(handler, str) else self._ask(handler, node, record, error)
        if response == "dead_letter":
            self._dead_letter(error)
        elif response == "fail":
            raise failed from error
        elif response != "continue":
            answers = "'fail', 'continue' or 'dead_letter'"
            raise StreamsError(
                f"{failed} (the exception handler answered {response!r}, not {answers})",
                summary=f"{failed.summary} (the exception handler did not answer {answers})",
            ) from error
        shown = str(failed).rstrip(".") if self.handlers.log_record_values else failed.summary
        log.warning("%s; the operator leaves the record out (%s), others keep it", shown, response)
        log.debug("%s", failed)
        if self._on_dropped is not None:
            self._on_dropped(error)
        self.drop(node, f"{what} error", is_dead_letter=response == "dead_letter")

    def _ask(
        self, handler: Callable[[Failure, Record, Exception], str], node: str, record: Record, error: Exception
    ) -> str:
        row = self.here.row
        where = (row[0], row[1], row[2]) if row else (None, None, None)
        try:
            return handler(Failure(node, self.task_id, *where), record, error)
        except Exception as broken:
            raise make_handler_error(f"{node} on {self._place()}", broken) from broken

    def _dead_letter(self, error: Exception) -> None:
        topic, row = self.handlers.dead_letter_topic, self.here.row
        if topic is None:
            raise StreamsError("there is no topic for dead letters; set errors.dead.letter.queue.topic.name") from error
        origin, partition, offset, key, value, timestamp, headers, _ = row or (
            "",
            -1,
            -1,
            None,
            None,
            self.here.clock,
            (),
            None,
        )
        kind, trace = f"{type(error).__module__}.{type(error).__qualname__}", "".join(traceback.format_exception(error))
        cause = error_headers(kind, str(error), trace, origin, partition, offset)
        self.outbox.append((topic, None, key, value, timestamp, (*headers, *cause), self.here.order))

    def place_of(self, node: str) -> Place:
        """The place of the current call of a node."""
        if self._column is not None:
            node, batch, places, left = self._column
            return Place(node, *batch.at, batch.offsets[places[len(places) - length_hint(left) - 1]])
        row = self.here.row
        return Place(node) if row is None else Place(node, *row[:3])

    def _place(self) -> str:
        row = self.here.row
        return "a punctuation" if row is None else f"{row[0]}/{row[1]} at offset {row[2]}"


def make_handler_error(place: str, broken: Exception) -> ProcessingError:
    """Makes the error of an exception handler that has raised an exception itself."""
    what = f"{place}: the exception handler itself failed"
    return ProcessingError(f"{what}: {broken!r}", summary=f"{what}: {type(broken).__name__}")


def error_headers(kind: str, message: str, trace: str, topic: str, partition: int, offset: int) -> Headers:
    """The headers of a dead letter, under the names that Kafka Streams gives them."""
    found = {
        "exception": kind, "message": message, "stacktrace": trace,
        "topic": topic, "partition": str(partition), "offset": str(offset),
    }  # fmt: skip
    return tuple((f"__streams.errors.{name}", text.encode()) for name, text in found.items())


def _exit_error(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"it called sys.exit({error.code!r}): raise an exception, or stop the application from outside")


# The functions that `Failures.guard`, `guard_punctuation` and `guard_columns` return: on the stack while a node runs.
GUARDS = frozenset(
    code
    for method in (Failures.guard, Failures.guard_punctuation, Failures.guard_columns)
    for code in method.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "guarded"
)
