"""A manifest: what a batch changed. When its file is there, the batch has happened.

| "HRM1" | blobs | index, MessagePack | digest of the index, 16 bytes | length of the index u32 |

Blobs are what was small enough to lie in the manifest; pieces in the index say where, and have their digests. So the
digest of the index is one of all of it. Every so often a manifest says everything, so that no earlier one is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.checkpoint.delta_files import Chain
from headrace.checkpoint.files import DIGEST, Piece, digest_of
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.errors import CheckpointCorruptedError
from headrace.model.ids import TaskId

MAGIC = b"HRM1"
_END = struct.Struct(f">{DIGEST}sI")
_encode = msgspec.msgpack.Encoder().encode


class TaskChange(NamedTuple):
    """A link more, or, if it is `whole`, all links of a task; `due` is when the wall clock next has work for it."""

    task: TaskId
    whole: bool
    links: Chain
    due: int | None


class Outbox(NamedTuple):
    """What a task wrote."""

    origin: TaskId
    piece: Piece


class Carried(NamedTuple):
    """Rows that a task sent back to one that had run already: the first ones that it reads in the next batch."""

    target: TaskId
    origin: TaskId
    piece: Piece


class Changelog(NamedTuple):
    """A topic with the state that another implementation left, and up to where each of its partitions is read."""

    topic: str
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`since` is the last manifest that says all; in between, tasks, positions and topics are those that changed."""

    number: int
    predecessor: bytes  # the digest of the manifest before; empty if it is the first
    since: int
    checkpoint: str
    application: str
    epoch: int
    clock: int
    delivered: int  # at least the batches up to this one
    tasks: tuple[TaskChange, ...] = ()
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    topics: Mapping[str, str] = field(default_factory=dict[str, str])  # their ids
    outboxes: tuple[Outbox, ...] = ()  # in the order in which equal places are written
    carried: tuple[Carried, ...] = ()  # all that waits
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # records since the beginning, by reason
    fingerprint: Fingerprint | None = None  # if it changed
    changelogs: Mapping[str, Changelog] = field(default_factory=dict[str, Changelog])  # to fill stores from, next

    @property
    def says_all(self) -> bool:
        return self.since == self.number


_decode = msgspec.msgpack.Decoder(Manifest).decode


class Blobs:
    """What will lie in a manifest, beside its index."""

    def __init__(self, number: int) -> None:
        self._number, self._parts, self._end = number, [MAGIC], len(MAGIC)

    def add(self, data: bytes) -> Piece:
        piece = Piece(self._number, self._end, len(data), digest_of(data))
        self._parts.append(data)
        self._end += len(data)
        return piece

    def followed_by(self, end: bytes) -> bytes:
        return b"".join([*self._parts, end])


def encode_manifest(manifest: Manifest, blobs: Blobs | None = None) -> bytes:
    index = _encode(manifest)
    return (blobs or Blobs(manifest.number)).followed_by(index + _END.pack(digest_of(index), len(index)))


def digest_in(raw: bytes) -> bytes:
    """The digest of a manifest's file that is whole."""
    return _END.unpack_from(raw, len(raw) - _END.size)[0]


def decode_manifest(raw: bytes, name: str) -> tuple[Manifest, bytes]:
    """A manifest and its digest; `name` is that of its file.

    >>> manifest = Manifest(
    ...     number=7, predecessor=b"", since=7, checkpoint="c", application="a", epoch=1, clock=0, delivered=6
    ... )
    >>> decode_manifest(encode_manifest(manifest), "x")[0] == manifest
    True
    """
    if raw[: len(MAGIC)] != MAGIC:
        raise _damaged(name, f"it begins with {raw[:4]!r}, so it is damaged, or a newer Headrace's")
    if len(raw) < len(MAGIC) + _END.size:
        raise _damaged(name, "it is cut off")
    digest, length = _END.unpack_from(raw, len(raw) - _END.size)
    start = len(raw) - _END.size - length
    index = raw[max(start, len(MAGIC)) : len(raw) - _END.size]
    if len(index) != length or digest_of(index) != digest:
        raise _damaged(name, "it does not match its checksum, or is cut off")
    try:
        return _decode(index), digest
    except msgspec.ValidationError as error:
        raise _damaged(name, f"it is of a newer Headrace ({error})") from error


def _damaged(name: str, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(f"the manifest {name} cannot be read: {why}", file=name)
