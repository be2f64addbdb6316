"""Every error that Headrace raises on purpose, as one tree.

StreamsError
├── TopologyError                    a topology with bad names, unknown parents, or a topic that is read twice
├── ConfigError                      a setting with a value that is not valid; also a ValueError
│   └── MissingExtraError            a package is not installed that an extra of Headrace installs
├── SerializationError               a key or value that a serde rejects
├── SchemaRegistryError              a schema registry does not answer, or does not have a schema
│   └── IncompatibleSchemaError      a registry rejects a schema, because others could not read or write with it
├── ProcessingError                  a user function raised while it processed a record
├── InvalidStateStoreError           a store is missing, closed or of another kind
│   ├── UnknownStoreError            the topology has no store of this name
│   ├── StoreNotReadyError           the checkpoint has no batch yet
│   └── UnsuitableQueryError         a store of this kind cannot answer the query
├── PositionNotReachedError          the answer would be older than the position that was asked for
├── BatchNotKeptError                the batch that was asked for is not kept, or has not happened
├── StateCorruptedError              bytes on disk differ from what was written
│   └── CheckpointCorruptedError     a file of a checkpoint is damaged or missing
├── CheckpointMismatchError          the checkpoint belongs to another application, topology, topic or log
├── AlreadyRunningError              another instance runs on the same checkpoint
├── FencedError                      another instance took over the checkpoint
├── StageRerunError                  Spark ran part of a stage again: the receipts do not belong together
├── StorageError                     the checkpoint's storage is full, forbidden, gone, or does not answer
│   └── MissingFileError             a file of the checkpoint does not exist
├── UnsafePathError                  other users could have written a directory or file, or it is a symbolic link
├── UnknownTopicError                the log has no such topic or partition
├── TopicExistsError                 the topic exists already
├── UnknownGroupError                the log has no such consumer group
├── GroupInUseError                  the group has live members, which do not allow the change
├── OffsetOutOfRangeError            the offset was removed, or is not written yet
├── RecordTooLargeError              a record exceeds the topic's max.message.bytes
├── ProducerFencedError              another producer, delivery or group member took over
├── LogCorruptedError                bytes of the embedded log differ from what was written
├── LogUnavailableError              the log cannot be opened or written
├── LogBusyError                     other processes held the log for too long
├── SinkUnavailableError             the target of a sink does not answer; the batch is tried again
└── RecordsRejectedError             the target of a sink does not take some records

UserWarning
└── CapturedStateWarning             a function keeps state in a variable, where Spark's processes do not share it
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.model.ids import TopicPartition
from headrace.secrets import mask_secrets


class StreamsError(Exception):
    """Something went wrong while a topology was built or run. Passwords and tokens in its message are masked.

    `summary` is the message without data of records, for logs; None if the message has no such data.

    >>> print(StreamsError("s3://key:secret@bucket/shop does not answer"))
    s3://***@bucket/shop does not answer
    """

    retriable = False
    summary: str | None = None

    def __init__(self, *given: object, summary: str | None = None) -> None:
        super().__init__(*given)
        if summary is not None:
            self.summary = summary

    def __str__(self) -> str:
        return mask_secrets(super().__str__())


class CapturedStateWarning(UserWarning):
    """A function of a topology changes a variable outside of itself: use a state store.

    `warnings.filterwarnings("ignore", category=CapturedStateWarning)` silences it, for example in a test that collects
    records in a list.
    """


class TopologyError(StreamsError):
    """A topology that cannot be."""


class ConfigError(StreamsError, ValueError):
    """A setting that cannot be understood."""


class MissingExtraError(ConfigError):
    """A package that only an extra of Headrace installs: `package` is its name, `extra` that of the extra."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'headrace[{extra}]'")
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.package, self.extra)


class InvalidStateStoreError(StreamsError):
    """A store that is missing, closed or of another kind than the one asked for."""


class StateCorruptedError(StreamsError):
    """Bytes on disk that are not what was written."""


class SerializationError(StreamsError):
    """A key or value that a serde refuses."""


class SchemaRegistryError(StreamsError):
    """A schema registry that does not answer, or that does not have what it was asked for."""


class IncompatibleSchemaError(SchemaRegistryError):
    """A schema that a registry rejects; `version` is the newest version of the subject."""

    def __init__(self, subject: str, version: int | None, reason: str) -> None:
        super().__init__(
            f"the schema is not compatible with version {version or 'latest'} of the subject {subject!r}: {reason}. "
            "Give a new field a default, or change the compatibility of the subject"
        )
        self.subject, self.version = subject, version


class ProcessingError(StreamsError):
    """What a user function raised while a record was processed; the original is its `__cause__`."""


class StorageError(StreamsError):
    """A place that cannot be read or written: full, forbidden, gone, not answering."""


class MissingFileError(StorageError):
    """A file that is not there."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"there is no file {name} in {where}")
        self.name, self.where = name, where


class UnsafePathError(StreamsError):
    """A directory or file that other users could have written, or a symbolic link: `problem` says which."""

    def __init__(self, path: Path, problem: str, advice: str) -> None:
        super().__init__(f"{path} {problem}: {advice}")
        self.path, self.problem, self.advice = path, problem, advice

    def __reduce__(self) -> tuple[type[UnsafePathError], tuple[Path, str, str]]:
        return UnsafePathError, (self.path, self.problem, self.advice)


class CheckpointCorruptedError(StateCorruptedError):
    """Bytes of a checkpoint that are not what was written, or are missing."""

    def __init__(self, message: str, *, file: str) -> None:
        super().__init__(message)
        self.file = file


class CheckpointMismatchError(StreamsError):
    """A checkpoint of another application, another topology, other topics or another log."""

    def __init__(self, message: str, *, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class AlreadyRunningError(StreamsError):
    """Another instance is running on the same checkpoint; it works when that one has stopped."""

    retriable = True


class FencedError(StreamsError):
    """Another instance took over; this one must stop."""


class StageRerunError(StreamsError):
    """Receipts of attempts that did not see each other; the batch has to run again."""

    retriable = True


class UnknownTopicError(StreamsError):
    """A topic or partition that is not there."""


class TopicExistsError(StreamsError):
    """A topic that is there already."""


class UnknownGroupError(StreamsError):
    """A consumer group that is not there."""


class GroupInUseError(StreamsError):
    """What living members of a group do not allow; it works when they have left."""

    retriable = True


class OffsetOutOfRangeError(StreamsError):
    """An offset that was removed, or is yet to come."""

    def __init__(self, message: str, *, at: TopicPartition | None = None, earliest: int = 0, end: int = 0) -> None:
        super().__init__(message)
        self.at, self.earliest, self.end = at, earliest, end


class RecordTooLargeError(StreamsError):
    """A record over the topic's max.message.bytes."""


class ProducerFencedError(StreamsError):
    """Somebody else took over: a producer's sequence, a delivery's number, a member's partitions."""


class LogCorruptedError(StreamsError):
    """Bytes on disk that are not what was written; where it is known, at which offsets and in which file."""

    def __init__(
        self, message: str, *, at: TopicPartition | None = None, offsets: range | None = None, file: str | None = None
    ) -> None:
        super().__init__(message)
        self.at, self.offsets, self.file = at, offsets, file


class LogUnavailableError(StreamsError):
    """A log that cannot be opened or written."""


class LogBusyError(StreamsError):
    """A log that others kept for too long; whether the last append was stored is not known."""

    retriable = True


class SinkUnavailableError(StreamsError):
    """The target of a sink does not answer, or has broken off. The batch is tried again until the target takes it."""

    retriable = True


class RecordsRejectedError(StreamsError):
    """The target of a sink does not take some records of a batch. `records` are these, each with the reason.

    The message may quote records. Logs show the `summary`, which must not.
    """

    def __init__(self, message: str, records: Sequence[tuple[Any, str]], summary: str | None = None) -> None:
        super().__init__(message)
        self.records = list(records)
        self.summary = summary or f"the target rejects {len(self.records)} record{'s' * (len(self.records) != 1)}"

    def __reduce__(self) -> tuple[type[RecordsRejectedError], tuple[str, list[tuple[Any, str]]], dict[str, Any]]:
        return RecordsRejectedError, (str(self), self.records), self.__dict__


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
    """A batch that is not kept, or has not happened: no answer can be as of it, and it cannot run again."""

    def __init__(self, batch: int, last: int, message: str | None = None) -> None:
        why = "it has not happened yet" if batch > last else "it is not kept any more"
        super().__init__(message or f"there is no answer as of batch {batch}: {why}. The last batch is {last}")
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


def summarize(error: BaseException, *, with_values: bool = False) -> str:
    """Returns what a log line says about an error: its summary if it has one, because its message may quote records.

    `with_values` returns the message (`log.record.values`).

    >>> summarize(RecordsRejectedError("5 is too large", [(5, "too large")])), summarize(StorageError("it is full"))
    ('the target rejects 1 record', 'it is full')
    """
    summary = None if with_values else getattr(error, "summary", None)
    return mask_secrets(str(summary or error))


def add_summary(error: Exception) -> None:
    """Gives an error that another library or a user's class has raised a summary: its kind, and the system's reason.

    >>> for error in ValueError("5 is too large"), OSError(28, "no room for 5"):
    ...     add_summary(error)
    ...     print(summarize(error))
    ValueError
    OSError: No space left on device
    """
    if not isinstance(error, StreamsError) and getattr(error, "summary", None) is None:
        number = (error.errno or 0) if isinstance(error, OSError) else 0
        kind = type(error).__name__
        setattr(error, "summary", f"{kind}: {os.strerror(number)}" if number > 0 else kind)  # noqa: B010 - errors of others lack it
