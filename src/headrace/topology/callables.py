"""The shapes of users' functions inside a topology: the DSL has brought them into these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KeyValueFunction = Callable[[Any, Any], Any]
Initializer = Callable[[], Any]
Aggregator = Callable[[Any, Any, Any], Any]  # (key, value, aggregate) -> aggregate
Reducer = Callable[[Any, Any], Any]  # (aggregate, value) -> aggregate
Merger = Callable[[Any, Any, Any], Any]  # (key, left, right) -> aggregate
KeyedJoiner = Callable[[Any, Any, Any], Any]  # (key, left, right) -> value
Joiner = Callable[[Any, Any], Any]  # (left, right) -> value
TimestampExtractor = Callable[[Any, int], int]  # (record, partition time) -> milliseconds
TopicExtractor = Callable[[Any, Any, Any], str]  # (key, value, context) -> topic
# (topic, key, value, partitions) -> partition, or None for the default
Partitioner = Callable[[str, Any, Any, int], Any]
Supplier = Callable[[], Any]
