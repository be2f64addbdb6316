"""Dropped records as plain data, with a sentence that says why each was left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.runtime.environment import DroppedRecord

_REASONS = {
    "late": "its window had closed: stream time had passed the window's end plus its grace",
    "expired window": "the window had left its store: it was older than the store's retention",
    "expired session": "the session had left its store: it was older than the store's retention",
    "null key": "it has no key, and the operator works by key",
    "null key or value": "it has no key or no value, and the operator needs both",
    "null foreign key": "the function of the join returned no foreign key for it",
    "older version": "the versioned table had a newer version of the row already",
    "expired version": "it was older than the history of the versioned table",
    "stale response": "the left row had changed before the answer of the foreign-key join came",
    "negative timestamp": "the timestamp extractor returned a negative timestamp",
    "deserialization error": "its key or value could not be decoded, and the handler did not stop the application",
    "processing error": "a function failed on it, and the handler did not stop the application",
    "production error": "a result could not be encoded, and the handler did not stop the application",
    "retention": "the log removed it before it was read",
}


def explain_reason(reason: str) -> str:
    """Returns a sentence for a reason of `dropped-records-total`.

    >>> explain_reason("null key")
    'it has no key, and the operator works by key'
    """
    return _REASONS.get(reason, reason)


def describe_drops(drops: Iterable[DroppedRecord]) -> list[dict[str, Any]]:
    """Returns each dropped record as a row, the newest first.

    >>> drop = DroppedRecord("late", "COUNT", "clicks", 0, 7, b"ada", 10, 99, 1_000)
    >>> [row] = describe_drops([drop])
    >>> row["operator"], row["offset"], row["key"]
    ('COUNT', 7, 'ada')
    """
    rows = [
        {
            "clock": drop.clock,
            "reason": drop.reason,
            "operator": drop.node,
            "topic": drop.topic,
            "partition": drop.partition,
            "offset": drop.offset if drop.offset >= 0 else None,
            "key": _text(drop.key),
            "timestamp": drop.timestamp,
            "stream_time": drop.stream_time,
            "why": explain_reason(drop.reason),
        }
        for drop in drops
    ]
    return sorted(rows, key=lambda row: row["clock"], reverse=True)


def _text(key: bytes | None) -> str | None:
    """The key as text if it is text, else its bytes in hexadecimal."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()
