"""The changes of one version of a task's state: as an object, as bytes, and several merged into one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise

from headrace.errors import StateCorruptedError
from headrace.state.engine import Changes, Engine, Version

MAGIC = b"HRD1"
DIGEST = 16
DELETED = 0xFFFF_FFFF
HEADER = struct.Struct(">QH")


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes that lead to a version, sorted by key; None deletes."""

    version: Version
    changes: tuple[tuple[bytes, bytes | None], ...]


def apply(delta: Delta, engine: Engine) -> None:
    """Applies a delta to an engine, which then has the delta's version."""
    at = engine.version
    if at is not None and at.number >= delta.version.number:
        raise StateCorruptedError(
            f"the delta of version {delta.version.number} does not follow version {at.number}: undo or restore first"
        )
    engine.commit(delta.changes, delta.version)


def merge(deltas: Iterable[Delta], *, from_nothing: bool = False) -> Delta:
    """Merges consecutive deltas into one; `from_nothing` means that the first starts from an empty state.

    >>> first, second = Delta(Version(1, "a"), ((b"k", b"1"),)), Delta(Version(2, "b"), ((b"k", None),))
    >>> merge([first, second])
    Delta(version=Version(number=2, attempt='b'), changes=((b'k', None),))
    """
    entries: dict[bytes, bytes | None] = {}
    version: Version | None = None
    for delta in deltas:
        entries.update(delta.changes)
        version = delta.version
    if version is None:
        raise ValueError("there is no delta to merge")
    return Delta(version, tuple(sorted(entry for entry in entries.items() if entry[1] is not None or not from_nothing)))


# | "HRD1" | digest of the rest, 16 bytes | number u64 | length of the attempt u16 | attempt | changes |
def encode_delta(delta: Delta) -> bytes:
    attempt = delta.version.attempt.encode()
    body = HEADER.pack(delta.version.number, len(attempt)) + attempt + encode_changes(delta.changes)
    return MAGIC + blake2b(body, digest_size=DIGEST).digest() + body


def decode_delta(raw: bytes) -> Delta:
    """
    >>> delta = Delta(Version(7, "try-1"), ((b"a", b"1"), (b"b", None), (b"c", b"")))
    >>> decode_delta(encode_delta(delta)) == delta
    True
    """
    start = len(MAGIC) + DIGEST
    body = raw[start:]
    if not raw.startswith(MAGIC):
        raise StateCorruptedError(f"not a delta, or one of a newer Headrace: it begins with {raw[:4]!r}, not {MAGIC!r}")
    if blake2b(body, digest_size=DIGEST).digest() != raw[len(MAGIC) : start]:
        raise StateCorruptedError(f"a delta of {len(raw)} bytes does not match its checksum: it is cut off or damaged")
    try:
        number, length = HEADER.unpack_from(body)
        end = HEADER.size + length
        version = Version(number, body[HEADER.size : end].decode())
        return Delta(version, tuple(decode_changes(body[end:])))
    except (struct.error, UnicodeDecodeError) as error:  # intact by its checksum, but not written by encode_delta
        raise StateCorruptedError(f"a delta of {len(raw)} bytes cannot be read: {error}") from error


# | count u32 | key lengths, u32 each | value lengths, u32 each, FFFFFFFF: deleted | keys | values |
def encode_changes(changes: Changes) -> bytes:
    keys = [key for key, _ in changes]
    lengths = [*map(len, keys), *(DELETED if value is None else len(value) for _, value in changes)]
    values = [value for _, value in changes if value is not None]
    return b"".join((struct.pack(f">I{len(lengths)}I", len(keys), *lengths), *keys, *values))


def decode_changes(raw: bytes) -> list[tuple[bytes, bytes | None]]:
    (count,) = struct.unpack_from(">I", raw)
    lengths = struct.unpack_from(f">{2 * count}I", raw, 4)
    keys = _slices(raw, 4 + 8 * count, lengths[:count])
    start = 4 + 8 * count + sum(lengths[:count])
    present = [0 if length == DELETED else length for length in lengths[count:]]
    values = _slices(raw, start, present)
    return [
        (key, None if length == DELETED else value)
        for key, value, length in zip(keys, values, lengths[count:], strict=True)
    ]


def _slices(raw: bytes, start: int, lengths: Sequence[int]) -> list[bytes]:
    return [raw[low:high] for low, high in pairwise(accumulate(lengths, initial=start))]
