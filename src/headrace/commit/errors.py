"""What can go wrong with a checkpoint; all of them are a `StreamsError`.

StorageError                a place that cannot be read or written: full, forbidden, gone, not answering
MissingFileError            a file that is not there
CheckpointCorruptedError    bytes of a checkpoint that are not what was written, or are missing
CheckpointMismatchError     a checkpoint of another application, another topology, other topics or another log
AlreadyRunningError         another instance that is running on the same checkpoint
FencedError                 another instance that took over
StageRerunError             receipts of attempts that did not see each other: Spark ran part of a stage again
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import StateCorruptedError, StreamsError


class StorageError(StreamsError):
    """A place that cannot be read or written: full, forbidden, gone, not answering."""


class MissingFileError(StorageError):
    """A file that is not there."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"there is no file {name} in {where}")
        self.name, self.where = name, where


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
