"""Dead letters: records that failed, with what their headers say about why, and where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.cli.forms import in_json
from headrace.log.protocol import Log, LogRow
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

CAUSE = "__streams.errors."


class Letter(NamedTuple):
    """A record of the dead letter topic. `headers` are the record's own; `cause` has the others, by their last word."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    cause: Mapping[str, str]

    @property
    def origin(self) -> TopicPartition | None:
        """The partition that it came from; None: it came from none, or the headers do not tell."""
        topic, partition = self.cause.get("topic"), self.cause.get("partition", "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON and tables."""
        offset = self.cause.get("offset", "")
        return {
            "partition": self.at.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "topic": self.cause.get("topic") or None,
            "from_partition": self.origin.partition if self.origin else None,
            "from_offset": int(offset) if offset.isdecimal() else None,
            "exception": self.cause.get("exception"),
            "message": self.cause.get("message"),
            "stacktrace": self.cause.get("stacktrace"),
            "headers": [[name, in_json(value)] for name, value in self.headers],
            "key": in_json(self.key),
            "value": in_json(self.value),
        }


def letter_of(at: TopicPartition, row: LogRow) -> Letter:
    """
    >>> raw = (("h", b"1"), ("__streams.errors.topic", b"orders"), ("__streams.errors.partition", b"2"))
    >>> letter = letter_of(TopicPartition("dead", 0), (7, b"k", b"v", 10, raw))
    >>> letter.headers, letter.origin
    ((('h', b'1'),), TopicPartition(topic='orders', partition=2))
    """
    offset, key, value, timestamp, headers = row
    cause = {name[len(CAUSE) :]: (raw or b"").decode(errors="replace") for name, raw in headers if _is_cause(name)}
    own = tuple((name, raw) for name, raw in headers if not _is_cause(name))
    return Letter(at, offset, key, value, timestamp, own, cause)


def letters_in(log: Log, topic: str, starts: Mapping[TopicPartition, int]) -> Iterator[Letter]:
    """Those that are there now, partition by partition, each from its start if it has one."""
    log.topic(topic)
    for at, extent in sorted(log.extents([topic]).items()):
        start = min(max(starts.get(at, 0), extent.earliest), extent.end)
        for chunk in log.read(at, start, extent.end):
            for row in chunk.rows():
                yield letter_of(at, row)


def _is_cause(name: str) -> bool:
    return name.startswith(CAUSE)
