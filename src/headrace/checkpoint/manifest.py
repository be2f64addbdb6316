"""The manifest of a batch, and the format of its file. Creating the file commits the batch.

    | "HRM1" | blobs | index: MessagePack of `Manifest` | digest of the index, 16 bytes | length of the index u32 |

The blobs are deltas, outboxes and carried rows that are small enough. The index refers to each with its digest, so the
digest of the index covers the whole file. A full manifest describes the whole checkpoint; the others describe what
changed since the last full one (`since`). `ledger` adds them up, `manifest_builder` makes the next one.

The index is a map: the field names of `Manifest` and `Fingerprint` are part of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.checkpoint.files import DIGEST, BlobRef, DeltaChain, digest_of
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.errors import CheckpointCorruptedError
from headrace.model.ids import TaskId
from headrace.runtime.environment import DroppedRecord

MAGIC = b"HRM1"
_END = struct.Struct(f">{DIGEST}sI")
_encode = msgspec.msgpack.Encoder().encode


class TaskChange(NamedTuple):
    """The deltas that a task got; if `whole`, its whole delta chain. `due` is its next wall-clock deadline."""

    task: TaskId
    whole: bool
    deltas: DeltaChain
    due: int | None


class Outbox(NamedTuple):
    """The records that a task wrote in a batch."""

    origin: TaskId
    blob: BlobRef


class Carried(NamedTuple):
    """Rows from `origin` to a task that had run already: the first input of `target` in the next batch."""

    target: TaskId
    origin: TaskId
    blob: BlobRef


class Changelog(NamedTuple):
    """A changelog topic that Kafka Streams left, and the offset up to which each of its partitions is read."""

    topic: str
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What batch `number` changed. In a full manifest, `tasks`, `positions` and `topics` have every entry."""

    number: int
    predecessor: bytes  # digest of manifest number - 1; empty in the first one
    since: int  # number of the last full manifest, this one included
    checkpoint: str
    application: str
    epoch: int
    clock: int
    delivered: int  # last batch that was known to be delivered when the manifest was written
    tasks: tuple[TaskChange, ...] = ()
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    topics: Mapping[str, str] = field(default_factory=dict[str, str])  # topic id, by name
    outboxes: tuple[Outbox, ...] = ()  # by (level, task): breaks ties between records of equal order
    carried: tuple[Carried, ...] = ()  # every row that waits, also from earlier batches
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # count by reason, since the application began
    drops: tuple[DroppedRecord, ...] = ()  # the last ones of each reason, if there are new ones, and in a full manifest
    fingerprint: Fingerprint | None = None  # if it changed, and in every full manifest
    changelogs: Mapping[str, Changelog] = field(
        default_factory=dict[str, Changelog]
    )  # by store: filled by the next batch
    stops: Mapping[str, Mapping[int, int]] = field(
        default_factory=dict[str, Mapping[int, int]]
    )  # offsets at which reading ends, in every full manifest

    @property
    def is_full(self) -> bool:
        return self.since == self.number


_decode = msgspec.msgpack.Decoder(Manifest).decode


class ManifestBlobs:
    """Collects the blobs that become part of a manifest's file."""

    def __init__(self, number: int) -> None:
        self._number, self._parts, self._end = number, [MAGIC], len(MAGIC)

    def add(self, data: bytes) -> BlobRef:
        ref = BlobRef(self._number, self._end, len(data), digest_of(data))
        self._parts.append(data)
        self._end += len(data)
        return ref

    def join(self, end: bytes) -> bytes:
        return b"".join([*self._parts, end])


def encode_manifest(manifest: Manifest, blobs: ManifestBlobs | None = None) -> bytes:
    index = _encode(manifest)
    return (blobs or ManifestBlobs(manifest.number)).join(index + _END.pack(digest_of(index), len(index)))


def manifest_digest(raw: bytes) -> bytes:
    """Returns the digest in an encoded manifest, without checking it."""
    return _END.unpack_from(raw, len(raw) - _END.size)[0]


def decode_manifest(raw: bytes, name: str) -> tuple[Manifest, bytes]:
    """Returns a manifest and its digest. `name` is the name of the file, for errors.

    >>> manifest = Manifest(
    ...     number=7, predecessor=b"", since=7, checkpoint="c", application="a", epoch=1, clock=0, delivered=6
    ... )
    >>> decode_manifest(encode_manifest(manifest), "x")[0] == manifest
    True
    """
    if raw[: len(MAGIC)] != MAGIC:
        raise _unreadable(name, f"it begins with {raw[:4]!r}, so it is damaged, or a newer Headrace's")
    if len(raw) < len(MAGIC) + _END.size:
        raise _unreadable(name, "it is cut off")
    digest, length = _END.unpack_from(raw, len(raw) - _END.size)
    start = len(raw) - _END.size - length
    index = raw[max(start, len(MAGIC)) : len(raw) - _END.size]
    if len(index) != length or digest_of(index) != digest:
        raise _unreadable(name, "it does not match its checksum, or is cut off")
    try:
        return _decode(index), digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(name, f"it is of a newer Headrace ({error})") from error


def _unreadable(name: str, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(f"the manifest {name} cannot be read: {why}", file=name)
