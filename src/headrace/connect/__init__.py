"""Sources and sinks: data from and to other systems.

A source writes into a topic of the log, exactly once: `builder.stream(source=FileSource(...), topic="orders")` runs it
with the application.
"""

from headrace.connect.file_source import FileSource
from headrace.connect.generator import GeneratorSource
from headrace.connect.postgres_changes import PostgresChanges
from headrace.connect.sql_source import SqlSource
from headrace.topology.connectors import Source, SourceBatch, SourceReader, SourceRecord

__all__ = [
    "FileSource", "GeneratorSource", "PostgresChanges", "Source", "SourceBatch", "SourceReader", "SourceRecord",
    "SqlSource",
]  # fmt: skip
