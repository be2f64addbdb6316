"""The files of a checkpoint: their names, references to the bytes in them, and checksums.

    checkpoint                             identity: id of the checkpoint and of its application
    owners/000000000005                    epoch 5 began; …05.000000000002: lease renewed; …05.released: it ended
    manifests/000000000012                 the commit of batch 12
    deltas/0_1/000000000012-ATTEMPT        state changes of task 0_1 in batch 12, if too large for the manifest
    outboxes/0_1/000000000012-ATTEMPT      records that it wrote
    carried/0_1/000000000012-ATTEMPT-2_0   rows that it sent back to task 2_0
    snapshots/0_1/000000000012-ID          merged deltas, first named by manifest 12 or a later one

The number in a name is that of the first manifest that may refer to the file. So a file with the number of an existing
manifest that no manifest refers to is garbage, unless a merge wrote it for a later manifest (`compaction.Cleaner`).

A blob is the bytes of a delta, an outbox or carried rows. A small blob is part of the manifest's file, a large one is a
file of its own. A `BlobRef` names either, with a digest. `encode_checksummed` frames the small files that no manifest
refers to: | magic, 4 bytes | digest of the body, 16 bytes | body |.

The state of a task is its delta chain, applied in order. The first delta of a chain starts from the empty state; each
of the others starts from the version of the delta before it. `compaction` merges deltas, `restore` applies them.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec

from headrace.checkpoint.steps import DELTA_WRITTEN, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, MissingFileError, StateCorruptedError, StorageError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, decode_delta
from headrace.state.engine import Version

T = TypeVar("T")
CHECKPOINT = "checkpoint"
MANIFESTS = "manifests/"
OWNERS = "owners/"
SNAPSHOTS = "snapshots"
NUMBERED = (MANIFESTS, "deltas/", "outboxes/", "carried/", "snapshots/")
_MANIFEST = re.compile(r"manifests/(\d{12,})")
_NUMBER = re.compile(r"(\d{12,})(\D.*)?")


# -------------------------------------------------------------------------------------------------------------- names
def format_number(number: int) -> str:
    return f"{number:012}"


def manifest_name(number: int) -> str:
    return MANIFESTS + format_number(number)


def manifest_number(name: str) -> int | None:
    """
    >>> manifest_number("manifests/000000000012"), manifest_number("manifests/000000000012.tmp-1")
    (12, None)
    """
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def task_file_name(folder: str, task: TaskId, number: int, unique: str) -> str:
    """
    >>> task_file_name("deltas", TaskId(0, 1), 12, "x7")
    'deltas/0_1/000000000012-x7'
    """
    return f"{folder}/{task}/{format_number(number)}-{unique}"


def file_number(name: str) -> int | None:
    """Returns the number of the first manifest that may refer to a file; None if no manifest can.

    >>> file_number("snapshots/0_1/000000000012-x7"), file_number("owners/000000000012")
    (12, None)
    """
    found = _NUMBER.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found and name.startswith(NUMBERED) else None


# -------------------------------------------------------------------------------------------------------------- blobs
DIGEST = 16  # bytes


class FileRef(NamedTuple):
    """A blob in a file of its own."""

    name: str
    size: int
    digest: bytes


Blob = bytes | FileRef  # in a receipt: inline, or written to a file already


class BlobRef(NamedTuple):
    """A blob in a checkpoint: part of a manifest's file, by the manifest's number, or all of another file, by name."""

    file: int | str
    offset: int
    size: int
    digest: bytes

    @property
    def name(self) -> str:
        return self.file if isinstance(self.file, str) else manifest_name(self.file)


def digest_of(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=DIGEST).digest()


def write_blob(storage: Storage, name: str, data: bytes, *, inline: int, at_step: AtStep) -> Blob:
    """Returns the bytes themselves if there are at most `inline` of them; otherwise writes them to a file."""
    if len(data) <= inline:
        return data
    with step(DELTA_WRITTEN, at_step):
        if not storage.create(name, data) and storage.read(name) != data:
            raise StorageError(f"{name} is in {storage.describe()} already: two attempts have the same id")
    return FileRef(name, len(data), digest_of(data))


def read_blob(storage: Storage, ref: BlobRef, what: str) -> bytes:
    """Reads a blob and checks its digest. Errors call the blob `what`."""
    try:
        data = storage.read(ref.name, ref.offset, ref.size)
    except MissingFileError:
        raise blob_error(ref, what, storage, "the file is missing") from None
    if len(data) != ref.size:
        raise blob_error(ref, what, storage, "the file is cut off")
    if digest_of(data) != ref.digest:
        raise blob_error(ref, what, storage, "the bytes do not match their checksum")
    return data


def blob_error(ref: BlobRef, what: str, storage: Storage, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"{what} cannot be read from {ref.name} in {storage.describe()}: {why}. Put the file back from a copy",
        file=ref.name,
    )


# -------------------------------------------------------------------------------------------------- checksummed files
def encode_checksummed(magic: bytes, body: bytes) -> bytes:
    return magic + digest_of(body) + body


def decode_checksummed(magic: bytes, raw: bytes, name: str) -> bytes:
    """
    >>> decode_checksummed(b"HRX1", encode_checksummed(b"HRX1", b"abc"), "x")
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


def decode_json(magic: bytes, raw: bytes, name: str, kind: type[T]) -> T:
    """Decodes a checksummed file whose body is JSON.

    >>> decode_json(b"HRX1", encode_checksummed(b"HRX1", b"[1]"), "x", list[int])
    [1]
    """
    try:
        return msgspec.json.decode(decode_checksummed(magic, raw, name), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptedError(
            f"the file {name} cannot be read: it is damaged, or a newer Headrace's ({error})", file=name
        ) from error


# ------------------------------------------------------------------------------------------------------------- deltas
class DeltaRef(NamedTuple):
    """A delta in a checkpoint. (`number`, `attempt`) is the version that it leads to; a merged one spans batches."""

    number: int
    attempt: str
    entries: int
    blob: BlobRef

    @property
    def version(self) -> Version:
        return Version(self.number, self.attempt)


DeltaChain = tuple[DeltaRef, ...]


def read_delta(storage: Storage, task: TaskId, ref: DeltaRef) -> Delta:
    """Reads a delta of a task, and checks that it is the one that was written."""
    what = f"the state of task {task} at version {ref.number}"
    raw = read_blob(storage, ref.blob, what)
    try:
        delta = decode_delta(raw)
    except StateCorruptedError as error:
        raise blob_error(ref.blob, what, storage, str(error)) from error
    if delta.version != ref.version:
        raise CheckpointCorruptedError(
            f"{ref.blob.name} has version {delta.version} of task {task}, not {ref.version}", file=ref.blob.name
        )
    return delta
