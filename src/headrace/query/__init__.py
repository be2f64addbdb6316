"""Interactive queries: read the stores of an application from outside its tasks, consistently after one batch."""

from headrace.errors import (
    BatchNotKeptError,
    PositionNotReachedError,
    StoreNotReadyError,
    UnknownStoreError,
    UnsuitableQueryError,
)
from headrace.query.follower import Follower, Freshness, Snapshot
from headrace.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Position,
    PrefixQuery,
    Query,
    QueryResult,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)

__all__ = [
    "BatchNotKeptError", "Follower", "Freshness", "KeyQuery", "MultiVersionedKeyQuery", "Position",
    "PositionNotReachedError", "PrefixQuery", "Query", "QueryResult", "RangeQuery", "SessionKeyQuery",
    "SessionRangeQuery", "Snapshot", "StoreNotReadyError", "TimestampedKeyQuery", "TimestampedRangeQuery",
    "UnknownStoreError", "UnsuitableQueryError", "VersionedKeyQuery", "WindowKeyQuery", "WindowRangeQuery",
]  # fmt: skip
