"""Where records are kept: the embedded log and Kafka, behind one protocol."""

from headrace.log.embedded.file_log import FileLog
from headrace.log.open import open_log
from headrace.log.protocol import Chunk, Log, Records

__all__ = ["Chunk", "FileLog", "Log", "Records", "open_log"]
