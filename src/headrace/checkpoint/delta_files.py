"""What makes up the state of a task: deltas one after the other, the first of them from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.checkpoint.files import Piece, damaged, read_piece
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, StateCorruptedError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, decode_delta
from headrace.state.engine import Version


class Link(NamedTuple):
    """A delta from the version of the link before, or from nothing, to its own; a merged one spans several batches."""

    number: int
    attempt: str
    entries: int
    piece: Piece

    @property
    def version(self) -> Version:
        return Version(self.number, self.attempt)


Chain = tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When a chain is to be merged: by its length, its bytes, or the age of what lies in old manifests."""

    links: int = 16
    outgrown: int = 64 * 1024  # bytes of deltas that are no reason to merge, however small their base is
    oldest: int = 64  # batches that a manifest is kept only because a delta lies in it


def read_delta(storage: Storage, task: TaskId, link: Link) -> Delta:
    """The delta of a link, if it is the one that was written."""
    what = f"the state of task {task} at version {link.number}"
    raw = read_piece(storage, link.piece, what)
    try:
        delta = decode_delta(raw)
    except StateCorruptedError as error:
        raise damaged(link.piece, what, storage, str(error)) from error
    if delta.version != link.version:
        raise CheckpointCorruptedError(
            f"{link.piece.name} has version {delta.version} of task {task}, not {link.version}", file=link.piece.name
        )
    return delta


def worn(chain: Chain, wear: CompactionPolicy, number: int) -> int | None:
    """The first link of those that should become one, if any should; `number` is the last manifest's.

    As in a log-structured tree: a link is merged with all that follows when they have become as large as it is. So a
    byte is written again about once per doubling of the state, and the links of a chain get smaller and smaller.
    """
    if not chain:
        return None
    in_manifests = [(i, link.piece.file) for i, link in enumerate(chain) if isinstance(link.piece.file, int)]
    aged = next((i for i, file in in_manifests if number - file > wear.oldest), None)
    too_many = len(chain) > wear.links
    outgrown = _after(chain, 0)[0] > max(chain[0].piece.size, wear.outgrown)
    if aged is None and not too_many and not outgrown:
        return None
    start = next((i for i in range(len(chain) - 1) if _is_outweighed(chain, i)), len(chain) - 2 if too_many else aged)
    return start if aged is None or start is None else min(start, aged)


def _is_outweighed(chain: Chain, index: int) -> bool:
    size, entries = _after(chain, index)
    # Deletions weigh little: what a base holds may be gone for the most part though the deltas are small.
    return size >= chain[index].piece.size or (index == 0 and 2 * entries >= chain[0].entries)


def _after(chain: Chain, index: int) -> tuple[int, int]:
    """Bytes and entries of the links that follow one."""
    return sum(link.piece.size for link in chain[index + 1 :]), sum(link.entries for link in chain[index + 1 :])


def replaced(chain: Chain, merged: Chain, by: Link) -> Chain:
    """The chain with some of its links merged into one; as it was, if they are not in it any more."""
    for start in range(len(chain) - len(merged) + 1):
        if chain[start : start + len(merged)] == merged:
            return (*chain[:start], by, *chain[start + len(merged) :])
    return chain
