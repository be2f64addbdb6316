"""Processes that write to a log until they are done, or killed."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer
from headrace.log.embedded import chunks, database, file_log
from headrace.log.embedded.chunks import ChunkFiles
from headrace.log.embedded.database import AckFile
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from tests.log.harness import seeded

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
STEPS: dict[str, tuple[Any, str]] = {
    "before a chunk file": (ChunkFiles, "write"),
    "before the names of files are on disk": (chunks, "sync_directory"),
    "before the rows": (file_log, "store_appends"),
    "in the middle of the rows": (chunks, "put_partition"),
    "before the commit": (database, "put_meta"),
    "before the acknowledgement": (AckFile, "write"),
}


def append_many(directory: str, name: str, count: int, told: Connection) -> None:
    """Appends the same numbered record to two topics, `count` times; says so each time."""
    chunks.LARGE = 2000  # some are files
    chance = seeded(name)
    with FileLog(directory, clean_every=None) as log:
        for i in range(count):
            filler = chance.randbytes(chance.choice((10, 5000)))
            records = Records([name.encode()] * 2, [b"%d" % i, filler], [i, i])
            log.append([(A, records), (B, records)])
            told.send(i)
    told.close()


def die_at(directory: str, step: str, told: Connection) -> None:
    """Appends twice; the second time it is killed at a step."""
    chunks.LARGE = 2000
    with FileLog(directory, clean_every=None) as log:
        first = Records([b"die"] * 2, [b"0", seeded(0).randbytes(5000)], [0, 0])
        log.append([(A, first), (B, first)])
        told.send(0)
        owner, name = STEPS[step]
        setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        second = Records([b"die"] * 2, [b"1", seeded(1).randbytes(5000)], [0, 0])
        log.append([(A, second), (B, second)])
        told.send(1)


def send_and_forget(directory: str, count: int, told: Connection) -> None:
    """Sends records and ends without flush or close."""
    producer = Producer(f"file:{directory}", linger=50)
    for i in range(count):
        producer.send("a", b"forgotten", b"%d" % i)
    told.close()


def consume(directory: str, told: Connection) -> None:
    """Reads as a member of a group, says what, and commits it, until it is killed."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "session_timeout": 300, "max_poll_records": 5}
    with Consumer(f"file:{directory}", "group", **options) as consumer:
        consumer.subscribe("b")
        while True:
            for record in consumer.poll(1000):
                told.send((record.partition, record.offset))
            consumer.commit()
