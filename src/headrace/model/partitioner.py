"""Which partition a key belongs to: Kafka's default partitioning, and functions of the user that declare another."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

K = TypeVar("K")

_SEED, _FACTOR, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2(raw: bytes) -> int:
    """The signed 32-bit hash that Kafka's clients take of a key.

    >>> murmur2(b"21")
    -973932308
    """
    length = len(raw)
    words = length // 4
    mixed = _SEED ^ length
    for word in struct.unpack_from(f"<{words}I", raw):
        part = word * _FACTOR & _MASK
        part ^= part >> 24
        mixed = mixed * _FACTOR & _MASK ^ part * _FACTOR & _MASK
    if length % 4:
        mixed = (mixed ^ int.from_bytes(raw[4 * words :], "little")) * _FACTOR & _MASK
    mixed ^= mixed >> 13
    mixed = mixed * _FACTOR & _MASK
    mixed ^= mixed >> 15
    return mixed - (mixed >> 31 << 32)


def partition_of(key: bytes | None, partitions: int) -> int | None:
    """The partition of a key; None without a key, because such a record may go to any partition.

    >>> partition_of(b"21", 6), partition_of(None, 6)
    (0, None)
    """
    return None if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


# Hashing a key takes longer than all the rest of sending a record, and most keys come again in the next batch.
known_partition = lru_cache(131_072)(partition_of)


class KeyPartitioner(Generic[K]):
    """A partitioner that looks at nothing but the key: `choose(key, partitions)` returns the number of a partition.

    With it, `repartition(partitioner=…)` declares where each key of the state behind it belongs, so that the state can
    be divided among another number of tasks. A plain function does not tell that: it may look at the value, too. The
    function must return the same partition for the same key and number at all times, in every process.

    >>> by_length = KeyPartitioner[str](lambda key, partitions: len(key) % partitions)
    >>> by_length("any topic", "hello", "any value", 3)
    2
    """

    def __init__(self, choose: Callable[[K, int], int]) -> None:
        self.choose = choose

    def __call__(self, topic: str, key: K, value: Any, partitions: int) -> int:
        return self.choose(key, partitions)
