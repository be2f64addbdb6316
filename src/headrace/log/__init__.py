"""Logs: topics of partitions of records. `embedded/` stores them in a directory, `kafka/` on a Kafka cluster.

`protocol.Log` says what a log does; both kinds keep the same contract and run the same tests. `open_log` opens one.
"""

from headrace.log.embedded.file_log import FileLog
from headrace.log.open import open_log
from headrace.log.protocol import Chunk, Log, Records

__all__ = ["Chunk", "FileLog", "Log", "Records", "open_log"]
