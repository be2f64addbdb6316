"""`headrace state` and `headrace checkpoint`: what is in a checkpoint, and whether all of it is as it was written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.checkpoint.ledger import manifest_numbers, read_manifest
from headrace.checkpoint.storage import Storage, open_storage
from headrace.cli.options import AsJson, AsOf, Checkpoint, Program, follower_of
from headrace.cli.printing import KINDS, Failed, WrongUsage, say, show, write
from headrace.query.history import BatchNote
from headrace.query.rendering import columns_of, rows_of
from headrace.query.verify import Finding, verify_checkpoint, verify_stores

state = typer.Typer(help="List, verify and export stores.", no_args_is_help=True)
checkpoints = typer.Typer(help="List and verify what a checkpoint holds.", no_args_is_help=True)


@state.command("ls")
def list_stores(checkpoint: Checkpoint, topology: Program = None, as_json: AsJson = False) -> None:
    """The stores: kind, serdes, entries and tasks."""
    snapshot = follower_of(checkpoint, topology).refresh()
    rows = [
        {
            "store": name,
            "kind": shelf.kind,
            "key": shelf.key.name,
            "value": shelf.value.name,
            "entries": snapshot.count(name),
            "tasks": " ".join(map(str, shelf.tasks)),
        }
        for name, shelf in sorted(snapshot.catalog.shelves.items())
    ]
    show(rows, ["store", "kind", "key", "value", "entries", "tasks"], as_json=as_json)
    say(f"As of batch {snapshot.batch}, {sum(snapshot.sizes.values()):,} bytes in the checkpoint.")


@state.command("verify")
def verify_state(checkpoint: Checkpoint, topology: Program = None, as_json: AsJson = False) -> int:
    """Read every entry of every store through its serdes."""
    follower = follower_of(checkpoint, topology)
    return _told(verify_stores(follower.storage, follower.refresh()), "entries", as_json=as_json)


@state.command()
def export(
    store: Annotated[str, typer.Argument(help="The store's name.")],
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.csv or FILE.ndjson.")],
    as_of: AsOf = None,
    topology: Program = None,
) -> None:
    """Write a store to a file."""
    if output.suffix not in KINDS:
        raise WrongUsage(f"{output} does not say of what kind it is: name it .parquet, .csv or .ndjson")
    follower = follower_of(checkpoint, topology)
    snapshot = follower.refresh() if as_of is None else follower.at(as_of)
    shelf = snapshot.catalog.shelf(store)
    names = [column.name for column in columns_of(shelf)]
    rows = [
        row for task in shelf.tasks for row in rows_of(follower.storage, snapshot.batch, snapshot.catalog, store, task)
    ]
    write(output, rows, names)
    say(f"{len(rows)} rows of {store}, as of batch {snapshot.batch}, are in {output}.")


@checkpoints.command("ls")
def list_batches(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """The batches whose manifests are there."""
    storage = _there(checkpoint)
    notes = [BatchNote.of(read_manifest(storage, number)[0]) for number in manifest_numbers(storage)]
    rows = [
        {
            "batch": note.number,
            "instance": note.epoch,
            "time": note.clock,
            "tasks": note.tasks,
            "state_bytes": note.state_bytes,
            "outbox_bytes": note.outbox_bytes,
        }
        for note in notes
    ]
    show(rows, ["batch", "instance", "time", "tasks", "state_bytes", "outbox_bytes"], as_json=as_json)


@checkpoints.command("verify")
def verify_files(checkpoint: Checkpoint, as_json: AsJson = False) -> int:
    """Read everything that is needed, and compare it with its checksums."""
    return _told(verify_checkpoint(_there(checkpoint)), "bytes", as_json=as_json)


def _there(checkpoint: str) -> Storage:
    """A checkpoint that is there: to look is not to make one."""
    if "://" not in checkpoint and not Path(checkpoint.removeprefix("file:")).is_dir():
        raise Failed(f"there is no checkpoint in {checkpoint}")
    return open_storage(checkpoint)


def _told(findings: Iterable[Finding], unit: str, *, as_json: bool) -> int:
    """Everything that was found, or only what is wrong; 1 if anything is."""
    found = list(findings)
    wrong = [finding for finding in found if finding.problem is not None]
    shown = found if as_json else wrong
    rows = [{"what": finding.what, unit: finding.size, "problem": finding.problem} for finding in shown]
    if rows or as_json:
        show(rows, ["what", unit, "problem"], as_json=as_json)
    say(f"{len(found)} read, {sum(finding.size for finding in found):,} {unit}, {len(wrong)} wrong.")
    return int(bool(wrong))
