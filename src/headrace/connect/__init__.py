"""Sources and sinks: data from and to other systems. docs/connect.md lists them with their guarantees.

A source writes into a topic of the log, exactly once: `builder.stream(source=FileSource(...), topic="orders")` runs it
with the application. A sink gets the records of a stream or a table: `stream.sink(PostgresSink(...))`.
"""

from headrace.connect.delta_sink import DeltaSink
from headrace.connect.file_sink import FileSink, list_files
from headrace.connect.file_source import FileSource
from headrace.connect.frames import write_topic
from headrace.connect.generator import GeneratorSource
from headrace.connect.http_sink import HttpSink
from headrace.connect.iceberg_sink import IcebergSink
from headrace.connect.log_sink import LogSink
from headrace.connect.log_source import LogSource
from headrace.connect.mirror import translate_offsets
from headrace.connect.mqtt_sink import MqttSink
from headrace.connect.mqtt_source import MqttSource
from headrace.connect.postgres_changes import PostgresChanges
from headrace.connect.postgres_sink import PostgresSink
from headrace.connect.redis_sink import RedisSink
from headrace.connect.spark_sink import SparkSink
from headrace.connect.sql_sink import SqlSink
from headrace.connect.sql_source import SqlSource
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkPart, SinkShare, SinkWriter
from headrace.topology.connectors import Source, SourceBatch, SourceReader, SourceRecord

__all__ = [
    "DeltaSink", "FileSink", "FileSource", "GeneratorSource", "HttpSink", "IcebergSink", "LogSink", "LogSource",
    "MqttSink", "MqttSource", "PostgresChanges", "PostgresSink", "RedisSink", "Sink", "SinkBatch", "SinkContext",
    "SinkPart", "SinkShare", "SinkWriter", "Source", "SourceBatch", "SourceReader", "SourceRecord", "SparkSink",
    "SqlSink", "SqlSource", "list_files", "translate_offsets", "write_topic",
]  # fmt: skip
