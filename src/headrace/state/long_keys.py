"""Keys of any length where keys may have 511 bytes: how LMDB holds long ones without losing their order.

A key of up to 440 bytes is a key of LMDB. All longer keys that share their first 440 bytes lie together in one entry, a
bucket, under these 440 bytes and a 0. It comes right after the key that is exactly these bytes, and before every other
key that is greater: so whoever reads the entries in order and opens the buckets sees all keys in order.

    short    | key |                         →  value
    bucket   | first 440 bytes | 00 |        →  changes (delta.py): the rest of each key, and its value
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.state.delta import decode_changes, encode_changes
from headrace.state.engine import Changes

LONGEST = 440


def bucket_of(key: bytes) -> bytes:
    return key[:LONGEST] + b"\x00"


def find(bucket: bytes | None, key: bytes) -> bytes | None:
    """The value of a long key in its bucket."""
    return None if bucket is None else dict(decode_changes(bucket)).get(key[LONGEST:])


def seek(key: bytes, *, past: bool = False) -> bytes:
    """Where to look for a key among the entries; `past` its bucket, where a scan is to end."""
    if len(key) <= LONGEST:
        return key
    return bucket_of(key) + b"\x00" if past else bucket_of(key)


def opened(entry: bytes, bucket: bytes, low: bytes, high: bytes | None) -> list[tuple[bytes, bytes]]:
    """What a bucket holds from `low` up to but without `high`."""
    start = entry[:LONGEST]
    keys = ((start + rest, value) for rest, value in decode_changes(bucket) if value is not None)
    return [(key, value) for key, value in keys if low <= key and (high is None or key < high)]


def folded(changes: Changes, stored: Callable[[bytes], bytes | None]) -> Changes:
    """Changes of keys as changes of entries; `stored` tells what an entry has now."""
    if all(len(key) <= LONGEST for key, _ in changes):
        return changes
    entries = [(key, value) for key, value in changes if len(key) <= LONGEST]
    return sorted([*entries, *_buckets(changes, stored)])


def _buckets(changes: Changes, stored: Callable[[bytes], bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    buckets: dict[bytes, dict[bytes, bytes | None]] = {}
    for key, value in changes:
        if len(key) > LONGEST:
            buckets.setdefault(bucket_of(key), {})[key[LONGEST:]] = value
    for entry, changed in buckets.items():
        before = stored(entry)
        contents = {} if before is None else dict(decode_changes(before))
        kept = sorted((rest, value) for rest, value in (contents | changed).items() if value is not None)
        yield entry, encode_changes(kept) if kept else None
