"""Deltas that become one, and files that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.commit.chain import Chain, Link, read_delta
from headrace.commit.names import MANIFESTS, NUMBERED, number_of
from headrace.commit.pieces import Piece, digest_of
from headrace.commit.steps import MERGE, PURGE, AtStep, step
from headrace.commit.storage import Storage
from headrace.model.ids import TaskId
from headrace.state.delta import encode_delta, merge


class Merge(NamedTuple):
    """Links of a task that are to become one, in a file of the given name."""

    task: TaskId
    links: Chain
    from_nothing: bool  # they begin the chain: what they delete leaves no trace
    name: str


def merge_links(storage: Storage, job: Merge, at_step: AtStep) -> Link:
    """Merges; nothing changes until a manifest names the new file."""
    merged = merge((read_delta(storage, job.task, link) for link in job.links), from_nothing=job.from_nothing)
    data = encode_delta(merged)
    with step(MERGE, at_step):
        storage.create(job.name, data)
    piece = Piece(job.name, 0, len(data), digest_of(data))
    return Link(*merged.version, len(merged.changes), piece)


def purge(storage: Storage, needed: Collection[str], upto: int, at_step: AtStep) -> int:
    """Deletes the files with the numbers of manifests up to one that nothing needs; says how many.

    Safe for one who does not know that he is not the owner any more: what a later owner needs has a larger number, or
    was needed before.
    """
    names = [name for folder in NUMBERED for name in storage.names(folder)]
    garbage = [name for name in names if (number := number_of(name)) is not None and number <= upto]
    garbage = [name for name in garbage if name not in needed]
    # Manifests first: one that is there must find what it names.
    garbage.sort(key=lambda name: not name.startswith(MANIFESTS))
    with step(PURGE, at_step):
        for name in garbage:
            storage.delete(name)
    return len(garbage)
