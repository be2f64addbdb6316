"""Small files that carry a checksum: | magic, 4 bytes | digest of the rest, 16 bytes | the rest |."""

from __future__ import annotations

from headrace.commit.errors import CheckpointCorruptedError
from headrace.commit.pieces import DIGEST, digest_of


def seal(magic: bytes, body: bytes) -> bytes:
    return magic + digest_of(body) + body


def unseal(magic: bytes, raw: bytes, name: str) -> bytes:
    """
    >>> unseal(b"HRX1", seal(b"HRX1", b"abc"), "x")
    b'abc'
    """
    start = len(magic) + DIGEST
    if raw[: len(magic)] != magic:
        raise CheckpointCorruptedError(
            f"the file {name} is damaged, or a newer Headrace's: it begins with {raw[:4]!r}", file=name
        )
    if digest_of(raw[start:]) != raw[len(magic) : start]:
        raise CheckpointCorruptedError(f"the file {name} does not match its checksum: it is damaged", file=name)
    return raw[start:]
