"""Where records are kept: the embedded log, and the clients that work on any log."""

from headrace.log.admin import Admin
from headrace.log.consumer import Consumer, ConsumerRecord
from headrace.log.filelog import FileLog
from headrace.log.open import open_log
from headrace.log.producer import Producer
from headrace.log.protocol import Chunk, Log, Records

__all__ = ["Admin", "Chunk", "Consumer", "ConsumerRecord", "FileLog", "Log", "Producer", "Records", "open_log"]
