"""What can go wrong with a log; all of them are a `StreamsError`.

UnknownTopicError         a topic or partition that is not there
TopicExistsError          a topic that is there already
UnknownGroupError         a consumer group that is not there
GroupInUseError           a group whose living members do not allow it
OffsetOutOfRangeError     an offset that was removed, or is yet to come
RecordTooLargeError       a record over the topic's max.message.bytes
FencedError               somebody else took over: a producer's sequence, a delivery's number, a member's partitions
LogCorruptedError         bytes on disk that are not what was written
LogUnavailableError       a log that cannot be opened or written
LogBusyError              a log that others kept for too long
"""

from __future__ import annotations

from headrace.errors import StreamsError
from headrace.model.ids import TopicPartition


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


class FencedError(StreamsError):
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
