"""Mirrors: which offset of a copy stands for an offset of the original.

A record that a mirror has copied carries its offset in the original topic, in a header that is named after the mirror:

    __mirror_offset.NAME    | offset, 8 bytes, big-endian |

So the copies are the map: it is in the same transaction as the data, it can lack nothing that the data has, and it
stays true when one of the topics is compacted, when records were aborted, and when others write to the copy, too. The
copies of a partition have growing offsets, so an offset is found by bisection, with some twenty reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_PREFIX = "__mirror_offset."
_SCAN = 1_000  # offsets that are read at once rather than bisected


def add_offset(headers: Headers, mirror: str, offset: int) -> Headers:
    r"""The headers of a copy. A header of the same mirror, which has copied the original, is replaced.

    >>> add_offset((("trace", b"7"),), "orders", 258)[1]
    ('__mirror_offset.orders', b'\x00\x00\x00\x00\x00\x00\x01\x02')
    """
    name = _PREFIX + mirror
    kept = headers if all(header[0] != name for header in headers) else [h for h in headers if h[0] != name]
    return (*kept, (name, offset.to_bytes(8)))


def original_offset(headers: Headers, mirror: str) -> int | None:
    """The offset of the original of a copy; None if the mirror has not copied the record.

    >>> original_offset(add_offset((), "orders", 258), "orders"), original_offset((), "orders")
    (258, None)
    """
    name = _PREFIX + mirror
    found = [value for key, value in headers if key == name and value is not None and len(value) == 8]
    return int.from_bytes(found[-1]) if found else None


def translate_offsets(
    log: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    mirror: str | None = None,
    client_settings: Mapping[str, Any] | None = None,
) -> dict[int, int]:
    """Translates offsets of the original topic into offsets of its copy in another log, by partition.

    The result is the offset of the first copy whose original is at the given offset or behind it. Where the mirror has
    not copied so far yet, it is the offset behind the last copy: what comes next is what a reader lacks. `mirror` is
    the name of the `LogSource` or of the sink, without it that of the topic.

    >>> import tempfile
    >>> from headrace.log.protocol import Records
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     copies = [add_offset((), "orders", offset) for offset in (10, 11, 15)]
    ...     with closing(open_log(f"file:{directory}")) as log:
    ...         _ = log.create_topic("orders")
    ...         _ = log.append([(TopicPartition("orders", 0), Records([None] * 3, [b"v"] * 3, [0] * 3, copies))])
    ...     [translate_offsets(f"file:{directory}", "orders", {0: offset})[0] for offset in (0, 11, 12, 16)]
    [0, 1, 2, 3]
    """
    with closing(open_log(log, dict(client_settings or {}))) as opened:
        return find_offsets(opened, topic, offsets, mirror or topic)


def find_offsets(log: Log, topic: str, offsets: Mapping[int, int], mirror: str) -> dict[int, int]:
    """Does what `translate_offsets` does, in an open log."""
    count = log.topic(topic).partitions
    missing = [partition for partition in offsets if partition >= count]
    if missing:
        raise ConfigError(f"the copy {topic!r} has {count} partitions, and no partition {missing[0]}: it is no mirror")
    found = {at: _find_offset(log, TopicPartition(topic, at), offset, mirror) for at, offset in offsets.items()}
    if any(offsets.values()) and not any(place.has_copies for place in found.values()):
        raise ConfigError(
            f"no record of {topic!r} has an offset of the mirror {mirror!r}. Give the name of the source or sink that "
            "fills it, or wait until it has copied something"
        )
    return {at: place.offset for at, place in found.items()}


class _Place(NamedTuple):
    offset: int
    has_copies: bool


def _find_offset(log: Log, at: TopicPartition, wanted: int, mirror: str) -> _Place:
    """Bisects the partition for the first copy of an original at `wanted` or behind it."""
    low, high = log.extents([at.topic])[at]
    after, found, has_copies = low, None, False
    while high - low > _SCAN:
        middle = (low + high) // 2
        first = next(_read_copies(log, at, middle, high, mirror), None)
        has_copies = has_copies or first is not None
        if first is None:
            high = middle
        elif first[1] >= wanted:
            found, high = first[0], middle
        else:
            low = after = first[0] + 1
    for offset, original in _read_copies(log, at, low, high, mirror):
        has_copies = True
        if original >= wanted:
            return _Place(offset, has_copies)
        after = offset + 1
    return _Place(after if found is None else found, has_copies)


def _read_copies(log: Log, at: TopicPartition, start: int, end: int, mirror: str) -> Iterator[tuple[int, int]]:
    """Iterates over the copies in a range: their offsets, and those of their originals."""
    for chunk in log.read(at, start, end):
        for offset, _, _, _, headers in chunk.rows():
            original = original_offset(headers, mirror)
            if original is not None:
                yield offset, original
