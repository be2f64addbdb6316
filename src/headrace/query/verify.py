"""Reads everything in a checkpoint that is needed, and says what is not as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.checkpoint.delta_files import read_delta
from headrace.checkpoint.files import Piece, manifest_name, read_piece
from headrace.checkpoint.ledger import Ledger, manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, StreamsError
from headrace.query.rendering import rows_of
from headrace.query.views import Snapshot


class Finding(NamedTuple):
    """A thing that was read, how many bytes or entries it has, and what is wrong with it."""

    what: str
    size: int
    problem: str | None = None


def verify_checkpoint(storage: Storage) -> Iterator[Finding]:
    """Every manifest that is there, and every file that the last one names, against their checksums."""
    numbers = manifest_numbers(storage)
    for number in numbers:
        name = manifest_name(number)
        try:
            read_manifest(storage, number)
        except CheckpointCorruptedError as error:
            yield Finding(name, 0, str(error))
        else:
            yield Finding(name, len(storage.read(name)))
    if not numbers:
        return
    try:
        ledger = read_ledger(storage, numbers[-1])
    except (CheckpointCorruptedError, CheckpointMismatchError) as error:
        yield Finding("the state", 0, str(error))
        return
    yield from _files(storage, ledger)


def _files(storage: Storage, ledger: Ledger) -> Iterator[Finding]:
    for task, standing in sorted(ledger.tasks.items()):
        for link in standing.chain:
            what = f"state of task {task} in {link.piece.name}"
            try:
                read_delta(storage, task, link)
            except CheckpointCorruptedError as error:
                yield Finding(what, link.piece.size, str(error))
            else:
                yield Finding(what, link.piece.size)
    waiting: list[tuple[str, Piece]] = [(f"rows for task {rows.target}", rows.piece) for rows in ledger.carried]
    for what, piece in waiting:
        try:
            read_piece(storage, piece, what)
        except CheckpointCorruptedError as error:
            yield Finding(what, piece.size, str(error))
        else:
            yield Finding(what, piece.size)


def verify_stores(storage: Storage, snapshot: Snapshot) -> Iterator[Finding]:
    """Every entry of every store, through its serdes."""
    for name, shelf in sorted(snapshot.catalog.shelves.items()):
        for task in shelf.tasks:
            count = 0
            try:
                for _ in rows_of(storage, snapshot.batch, snapshot.catalog, name, task):
                    count += 1
            except StreamsError as error:
                yield Finding(f"{name} in task {task}", count, str(error))
            except Exception as error:  # noqa: BLE001 - whatever a serde raises
                yield Finding(f"{name} in task {task}", count, f"an entry cannot be decoded: {error}")
            else:
                yield Finding(f"{name} in task {task}", count)
