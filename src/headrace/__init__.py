"""Kafka Streams for Python, on Spark."""

from headrace import serde
from headrace.app import Application
from headrace.dsl.builder import StreamsBuilder
from headrace.dsl.cogrouped import CogroupedKStream, WindowedCogroupedKStream
from headrace.dsl.grouped import KGroupedStream
from headrace.dsl.grouped_table import KGroupedTable
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
from headrace.log.admin import Admin
from headrace.log.consumer import Consumer, ConsumerRecord
from headrace.log.producer import Producer
from headrace.model import timestamps
from headrace.model.daily import DailyWindows
from headrace.model.record import FixedKeyRecord, Record, RecordMetadata, ValueAndTimestamp, VersionedRecord
from headrace.model.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
)
from headrace.state.spec import StoreSpec
from headrace.state.stores import Stores
from headrace.topology.builder import Topology
from headrace.topology.describe import TopologyDescription
from headrace.topology.processor import FixedKeyProcessor, Processor, ProcessorContext, Punctuation

__all__ = [
    "Admin", "Application", "Buffer", "CogroupedKStream", "ConfigError", "Consumer", "ConsumerRecord", "DailyWindows",
    "EmitStrategy", "FixedKeyProcessor", "FixedKeyRecord", "GlobalKTable", "InvalidStateStoreError", "JoinWindows",
    "KGroupedStream", "KGroupedTable", "KStream", "KTable", "Materialized", "ProcessingError", "Processor",
    "ProcessorContext", "Producer", "Punctuation", "Record", "RecordMetadata", "SerializationError", "SessionWindows",
    "SlidingWindows", "StateCorruptedError", "StoreSpec", "Stores", "StreamsBuilder", "StreamsError", "Suppressed",
    "TimeWindows", "Topology", "TopologyDescription", "TopologyError", "UnlimitedWindows", "ValueAndTimestamp",
    "VersionedRecord", "Window", "Windowed", "WindowedCogroupedKStream", "WindowedKStream", "serde", "timestamps",
]  # fmt: skip
