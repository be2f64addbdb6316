"""The names of a checkpoint's files.

checkpoint                          whose it is
owners/000000000005                 that epoch 5 began; …05.000000000002 that it still ran; …05.released that it ended
manifests/000000000012              batch 12: the commit
deltas/0_1/000000000012-ATTEMPT     what an attempt at batch 12 changed in task 0_1, if it is too large for the manifest
outboxes/0_1/000000000012-ATTEMPT   what it wrote
carried/0_1/000000000012-ATTEMPT-2_0   what it sent back to task 2_0
snapshots/0_1/000000000012-ID       merged deltas, first named by manifest 12 or a later one

The number is that of the first manifest that may name the file. So a file with the number of a manifest that is there,
which no manifest names, will never be named: it is garbage.

Bytes of a checkpoint: a file of their own, or a part of a manifest's file; always with their digest.

Small files that carry a checksum: | magic, 4 bytes | digest of the rest, 16 bytes | the rest |.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from headrace.checkpoint.steps import DELTA_WRITTEN, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, MissingFileError, StorageError
from headrace.model.ids import TaskId

CHECKPOINT = "checkpoint"
MANIFESTS = "manifests/"
OWNERS = "owners/"
SNAPSHOTS = "snapshots"
NUMBERED = (MANIFESTS, "deltas/", "outboxes/", "carried/", "snapshots/")
_MANIFEST = re.compile(r"manifests/(\d{12,})")
_NUMBER = re.compile(r"(\d{12,})(\D.*)?")


def digits(number: int) -> str:
    return f"{number:012}"


def manifest_name(number: int) -> str:
    return MANIFESTS + digits(number)


def manifest_number(name: str) -> int | None:
    """
    >>> manifest_number("manifests/000000000012"), manifest_number("manifests/000000000012.tmp-1")
    (12, None)
    """
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def attempt_name(folder: str, task: TaskId, number: int, attempt: str) -> str:
    """
    >>> attempt_name("deltas", TaskId(0, 1), 12, "x7")
    'deltas/0_1/000000000012-x7'
    """
    return f"{folder}/{task}/{digits(number)}-{attempt}"


def number_of(name: str) -> int | None:
    """The number of the first manifest that may name a file; None of files that manifests do not name.

    >>> number_of("snapshots/0_1/000000000012-x7"), number_of("owners/000000000012")
    (12, None)
    """
    found = _NUMBER.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found and name.startswith(NUMBERED) else None


DIGEST = 16


class FileRef(NamedTuple):
    """A whole file."""

    name: str
    size: int
    digest: bytes


Blob = bytes | FileRef  # on the way to the manifest: in hand, or in a file already


class Piece(NamedTuple):
    """Part of the file of a manifest, by its number, or all of another file, by its name."""

    file: int | str
    offset: int
    size: int
    digest: bytes

    @property
    def name(self) -> str:
        return self.file if isinstance(self.file, str) else manifest_name(self.file)


def digest_of(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=DIGEST).digest()


def stow(storage: Storage, name: str, data: bytes, *, inline: int, at_step: AtStep) -> Blob:
    """Bytes as they are if they are at most `inline` long, else in a file of that name."""
    if len(data) <= inline:
        return data
    with step(DELTA_WRITTEN, at_step):
        if not storage.create(name, data) and storage.read(name) != data:
            raise StorageError(f"{name} is in {storage.describe()} already: two attempts have the same id")
    return FileRef(name, len(data), digest_of(data))


def read_piece(storage: Storage, piece: Piece, what: str) -> bytes:
    """The bytes of a piece, which is `what` to people, if they are what was written."""
    try:
        data = storage.read(piece.name, piece.offset, piece.size)
    except MissingFileError:
        raise damaged(piece, what, storage, "the file is missing") from None
    if len(data) != piece.size:
        raise damaged(piece, what, storage, "the file is cut off")
    if digest_of(data) != piece.digest:
        raise damaged(piece, what, storage, "the bytes do not match their checksum")
    return data


def damaged(piece: Piece, what: str, storage: Storage, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"{what} cannot be read from {piece.name} in {storage.describe()}: {why}. Put the file back from a copy",
        file=piece.name,
    )


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
