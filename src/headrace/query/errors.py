"""What a question to a store can fail of.

UnknownStoreError          a store that the topology does not have
StoreNotReadyError         a checkpoint without a batch, yet
UnsuitableQueryError       a question that a store of this kind, or this store, cannot answer
PositionNotReachedError    an answer that would be older than the one asked for
BatchNotKeptError          an answer as of a batch that is not kept, or has not happened
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import InvalidStateStoreError, StreamsError


class UnknownStoreError(InvalidStateStoreError):
    """A store that the topology does not have."""

    def __init__(self, store: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no store {store!r} (there is: {', '.join(sorted(known)) or 'none'})")
        self.store = store


class StoreNotReadyError(InvalidStateStoreError):
    """A checkpoint without a batch, yet."""

    retriable = True


class UnsuitableQueryError(InvalidStateStoreError):
    """A question that a store of this kind, or this store, cannot answer."""


class PositionNotReachedError(StreamsError):
    """An answer that would be older than the one asked for; it works when the batch is committed and read."""

    retriable = True

    def __init__(self, wanted: object, reached: object) -> None:
        super().__init__(f"the answer would be as of {reached}, and {wanted} is not reached yet: ask again")
        self.wanted, self.reached = wanted, reached


class BatchNotKeptError(StreamsError):
    """An answer as of a batch that is not kept, or has not happened."""

    def __init__(self, batch: int, last: int) -> None:
        why = "it has not happened yet" if batch > last else "it is not kept any more"
        super().__init__(f"there is no answer as of batch {batch}: {why}. The last batch is {last}")
        self.batch, self.last = batch, last


_KINDS: dict[str, type[StreamsError]] = {
    kind.__name__: kind
    for kind in (
        UnknownStoreError, StoreNotReadyError, UnsuitableQueryError, PositionNotReachedError, BatchNotKeptError,
    )
}  # fmt: skip


def failure_named(kind: str, message: str) -> StreamsError | None:
    """A failure that was met elsewhere, by the name of its kind; of its fields only the message is known.

    >>> failure_named("StoreNotReadyError", "there is no batch yet")
    StoreNotReadyError('there is no batch yet')
    """
    found = _KINDS.get(kind)
    return None if found is None else found.__new__(found, message)
