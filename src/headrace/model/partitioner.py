"""Which partition a key belongs to: Kafka's default partitioning."""

from __future__ import annotations

import struct
from functools import lru_cache

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
    """The partition of a key; a record without one may go anywhere, so it is None: the host's choice.

    >>> partition_of(b"21", 6), partition_of(None, 6)
    (0, None)
    """
    return None if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


# Hashing a key takes longer than all the rest of sending a record, and most keys come again in the next batch.
known_partition = lru_cache(131_072)(partition_of)
