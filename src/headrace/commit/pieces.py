"""Bytes of a checkpoint: a file of their own, or a part of a manifest's file; always with their digest."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from headrace.commit.errors import CheckpointCorruptedError, MissingFileError, StorageError
from headrace.commit.names import manifest_name
from headrace.commit.steps import DELTA_WRITTEN, AtStep, step
from headrace.commit.storage import Storage

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
