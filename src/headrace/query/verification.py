"""Verification: read everything that a checkpoint needs, and report what is not as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.checkpoint.files import manifest_name, read_blob, read_delta
from headrace.checkpoint.ledger import manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, StreamsError
from headrace.query.export import export_rows
from headrace.query.follower import Snapshot


class Finding(NamedTuple):
    """Something that was read, its size in bytes or entries, and what is wrong with it, if anything."""

    what: str
    size: int
    problem: str | None = None


def verify_checkpoint(storage: Storage) -> Iterator[Finding]:
    """Check every manifest, and every file that the last manifest names, against their checksums."""
    numbers = manifest_numbers(storage)
    for number in numbers:
        name = manifest_name(number)
        finding = _try_read(name, 0, lambda number=number: read_manifest(storage, number))
        yield finding if finding.problem else finding._replace(size=len(storage.read(name)))
    if not numbers:
        return
    try:
        ledger = read_ledger(storage, numbers[-1])
    except (CheckpointCorruptedError, CheckpointMismatchError) as error:
        yield Finding("the state", 0, str(error))
        return
    for task, head in sorted(ledger.tasks.items()):
        for delta in head.chain:
            what = f"state of task {task} in {delta.blob.name}"
            yield _try_read(what, delta.blob.size, lambda task=task, delta=delta: read_delta(storage, task, delta))
    for rows in ledger.carried:
        what = f"rows for task {rows.target}"
        yield _try_read(what, rows.blob.size, lambda rows=rows, what=what: read_blob(storage, rows.blob, what))


def _try_read(what: str, size: int, read: Callable[[], Any]) -> Finding:
    try:
        read()
    except CheckpointCorruptedError as error:
        return Finding(what, size, str(error))
    return Finding(what, size)


def verify_stores(storage: Storage, snapshot: Snapshot) -> Iterator[Finding]:
    """Decode every entry of every store with its serdes."""
    for name, store in sorted(snapshot.catalog.stores.items()):
        for task in store.tasks:
            count, problem = 0, None
            try:
                for _ in export_rows(storage, snapshot.batch, snapshot.catalog, name, task):
                    count += 1
            except StreamsError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - a user's serde may raise anything
                problem = f"an entry cannot be decoded: {error}"
            yield Finding(f"{name} in task {task}", count, problem)
