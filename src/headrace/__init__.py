"""Kafka Streams for Python, on Spark."""

from headrace import serde
from headrace.app import Application, read_store
from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer, ConsumerRecord
from headrace.clients.producer import Producer
from headrace.dsl.builder import StreamsBuilder
from headrace.dsl.cogrouped import CogroupedKStream, WindowedCogroupedKStream
from headrace.dsl.grouped import KGroupedStream, KGroupedTable
from headrace.dsl.options import Buffer, EmitStrategy, Materialized, Suppressed
from headrace.dsl.stream import KStream
from headrace.dsl.table import GlobalKTable, KTable
from headrace.dsl.windowed import WindowedKStream
from headrace.errors import (
    ConfigError,
    InvalidStateStoreError,
    ProcessingError,
    SerializationError,
    StateCorruptedError,
    StreamsError,
    TopologyError,
)
from headrace.model import timestamps
from headrace.model.record import FixedKeyRecord, Record, RecordMetadata, ValueAndTimestamp, VersionedRecord
from headrace.model.windows import (
    DailyWindows,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
)
from headrace.query import (
    BatchNotKeptError,
    KeyQuery,
    MultiVersionedKeyQuery,
    Position,
    PositionNotReachedError,
    PrefixQuery,
    QueryResult,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    StoreNotReadyError,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    UnknownStoreError,
    UnsuitableQueryError,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from headrace.state.spec import Stores, StoreSpec
from headrace.topology.builder import Topology
from headrace.topology.describe import TopologyDescription
from headrace.topology.processor import FixedKeyProcessor, Processor, ProcessorContext, Punctuation

__all__ = [
    "Admin", "Application", "BatchNotKeptError", "Buffer", "CogroupedKStream", "ConfigError", "Consumer",
    "ConsumerRecord", "DailyWindows", "EmitStrategy", "FixedKeyProcessor", "FixedKeyRecord", "GlobalKTable",
    "InvalidStateStoreError", "JoinWindows", "KGroupedStream", "KGroupedTable", "KStream", "KTable", "KeyQuery",
    "Materialized", "MultiVersionedKeyQuery", "Position", "PositionNotReachedError", "PrefixQuery", "ProcessingError",
    "Processor", "ProcessorContext", "Producer", "Punctuation", "QueryResult", "RangeQuery", "Record", "RecordMetadata",
    "SerializationError", "SessionKeyQuery", "SessionRangeQuery", "SessionWindows", "SlidingWindows",
    "StateCorruptedError", "StoreNotReadyError", "StoreSpec", "Stores", "StreamsBuilder", "StreamsError", "Suppressed",
    "TimeWindows", "TimestampedKeyQuery", "TimestampedRangeQuery", "Topology", "TopologyDescription", "TopologyError",
    "UnknownStoreError", "UnlimitedWindows", "UnsuitableQueryError", "ValueAndTimestamp", "VersionedKeyQuery",
    "VersionedRecord", "Window", "WindowKeyQuery", "WindowRangeQuery", "Windowed", "WindowedCogroupedKStream",
    "WindowedKStream", "read_store", "serde", "timestamps",
]  # fmt: skip
