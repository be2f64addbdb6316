"""The rows that go into a task and come out of it.

Plain tuples: a batch has many, and a named tuple takes ten times as long to make.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.model.record import Headers
from headrace.state.delta import Delta

# (topic, partition, offset, key, value, timestamp, headers, order): a record as it was read. The order says where it
# stands among the records of its batch; what it causes inherits it.
Row = tuple[str, int, int, bytes | None, bytes | None, int, Headers, Any]

# (topic, partition, key, value, timestamp, headers, order): a record to be written. The partition is None where the
# key's hash decides; the order is that of the row that caused it.
Output = tuple[str, int | None, bytes | None, bytes | None, int, Headers, Any]


class Result(NamedTuple):
    """What a batch gave: records to be written, and what changed in the state."""

    outputs: list[Output]
    delta: Delta
    dropped: dict[str, int]  # records that were left out, by reason
