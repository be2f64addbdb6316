"""`headrace state`, `headrace checkpoint` and `headrace changelogs`: list, verify, export and change state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.checkpoint.changelog_export import Export
from headrace.checkpoint.ledger import manifest_numbers, read_manifest
from headrace.checkpoint.store_edits import prune_stores, remove_store, rename_store
from headrace.cli.options import (
    AsJson,
    AsOf,
    Checkpoint,
    Program,
    Target,
    load_application,
    open_checkpoint,
    open_follower,
)
from headrace.cli.output import (
    FILE_FORMATS,
    UsageError,
    print_json,
    print_names,
    print_note,
    print_rows,
    stderr,
    write_file,
)
from headrace.extras import needs_extra
from headrace.query.export import export_columns, export_rows
from headrace.query.history import BatchSummary
from headrace.query.verification import Finding, verify_checkpoint, verify_stores

state = typer.Typer(help="List, verify, export, rename, migrate and prune stores.", no_args_is_help=True)
checkpoints = typer.Typer(help="List and verify the batches of a checkpoint.", no_args_is_help=True)


@state.command("ls")
def list_stores(checkpoint: Checkpoint = "", topology: Program = None, as_json: AsJson = False) -> None:
    """List the stores with their kinds, serdes, entries and tasks."""
    snapshot = open_follower(checkpoint, topology).refresh()
    rows = [
        {"store": store["name"], **store, "tasks": " ".join(store["tasks"])} for store in snapshot.summarize_stores()
    ]
    columns = ["store", "kind", "key", "value", "entries", "tasks"]
    print_rows([{column: row[column] for column in columns} for row in rows], columns, as_json=as_json)
    print_note(f"As of batch {snapshot.batch}: {sum(snapshot.sizes.values()):,} bytes in the checkpoint.")


@state.command("verify")
def verify_state(checkpoint: Checkpoint = "", topology: Program = None, as_json: AsJson = False) -> int:
    """Decode every entry of every store with its serdes. Exit with 1 if one fails."""
    follower = open_follower(checkpoint, topology)
    return _print_findings(verify_stores(follower.storage, follower.refresh()), "entries", as_json=as_json)


@state.command()
def export(
    store: Annotated[str, typer.Argument(help="The store's name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.csv or FILE.ndjson.")],
    checkpoint: Checkpoint = "",
    as_of: AsOf = None,
    topology: Program = None,
) -> None:
    """Write a store to a file."""
    if output.suffix not in FILE_FORMATS:
        raise UsageError(f"{output} does not say of what kind it is: name it .parquet, .csv or .ndjson")
    follower = open_follower(checkpoint, topology)
    snapshot = follower.snapshot_at(as_of)
    description = snapshot.catalog.describe(store)
    rows = [
        row
        for task in description.tasks
        for row in export_rows(follower.storage, snapshot.batch, snapshot.catalog, store, task)
    ]
    write_file(output, rows, [column.name for column in export_columns(description)])
    print_note(f"Wrote {len(rows)} rows of {store}, as of batch {snapshot.batch}, to {output}.")


@state.command("rename")
def rename(
    old: Annotated[str, typer.Argument(help="The store's name in the checkpoint.")],
    new: Annotated[str, typer.Argument(help="Its name in the topology. The old one confirms a generated name.")],
    checkpoint: Checkpoint,
) -> None:
    """Give a store another name in the checkpoint, with its data. Stop the application first."""
    rename_store(open_checkpoint(checkpoint), old, new)
    print_note(f"The store {old} is {new} now." if old != new else f"The store {new} keeps its name.")


@state.command("remove")
def remove(store: Annotated[str, typer.Argument(help="The store's name.")], checkpoint: Checkpoint) -> None:
    """Mark a store as removed: no store of the topology continues it. Stop the application first."""
    remove_store(open_checkpoint(checkpoint), store)
    print_note(f"The store {store} is removed. Its data stays until `headrace state prune {store}`.")


@state.command("prune")
def prune(
    checkpoint: Checkpoint,
    stores: Annotated[list[str] | None, typer.Argument(help="Removed stores. Without a name: all of them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete the data of removed stores. Stop the application first."""
    pruned = prune_stores(open_checkpoint(checkpoint), stores or ())
    print_names(pruned, as_json=as_json)
    print_note(f"Deleted the data of {len(pruned)} removed stores.")


@state.command("migrate")
def migrate(
    target: Target,
    application_id: Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint. Only with a Topology.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    as_json: AsJson = False,
) -> None:
    """Carry out all changes that `headrace plan` shows, and migrate all values. Stop the application first."""
    with needs_extra("spark"):  # the import takes a second, which other commands save
        from headrace.spark.job_planner import migrate_application  # noqa: PLC0415

    options = {"--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config}
    app = load_application(target, options, ignored={"--log"})
    with stderr().status(f"Carrying the state of {app.application_id} over …"):
        done = migrate_application(app.setup)
    if as_json:
        print_json(done.to_json())
    else:
        changed = [f"{c.subject} {c.name}: {c.action}" for c in done.changes if c.action != "kept"]
        print_names(changed, as_json=False)
        print_note(f"{app.application_id} has its new form.")


@checkpoints.command("ls")
def list_batches(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """List the batches whose manifests are kept."""
    storage = open_checkpoint(checkpoint)
    batches = [BatchSummary.of(read_manifest(storage, number)[0]) for number in manifest_numbers(storage)]
    rows = [
        {
            "batch": batch.number,
            "instance": batch.epoch,
            "time": batch.clock,
            "tasks": batch.tasks,
            "state_bytes": batch.state_bytes,
            "outbox_bytes": batch.outbox_bytes,
        }
        for batch in batches
    ]
    print_rows(rows, ["batch", "instance", "time", "tasks", "state_bytes", "outbox_bytes"], as_json=as_json)


@checkpoints.command("verify")
def verify_files(checkpoint: Checkpoint, as_json: AsJson = False) -> int:
    """Compare every file that is needed with its checksum. Exit with 1 if one differs."""
    return _print_findings(verify_checkpoint(open_checkpoint(checkpoint)), "bytes", as_json=as_json)


def changelogs(
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    application_id: Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log, kafka://HOST:PORT. Only with a Topology.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint. Only with a Topology.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the state to the changelogs of a Java application with the same id. Stop the application first."""
    options = {"--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config}
    app = load_application(target, options)
    with stderr().status(f"Comparing the state of {app.application_id} with its changelogs …") as status:

        def show_progress(part: Export) -> None:
            status.update(f"{part.topic}: {part.written} of {part.entries} entries of a partition written")

        exports = app.write_changelogs(dry_run=dry_run, told=show_progress)
    print_rows([export._asdict() for export in exports], Export._fields, as_json=as_json)
    print_note("Nothing was changed: this was a dry run." if dry_run else f"{app.application_id} can continue in Java.")


def _print_findings(findings: Iterable[Finding], unit: str, *, as_json: bool) -> int:
    """Print the problems, or every finding as JSON, and return 1 if there is a problem."""
    found = list(findings)
    problems = [finding for finding in found if finding.problem is not None]
    rows = [{"what": what, unit: size, "problem": problem} for what, size, problem in (found if as_json else problems)]
    if rows or as_json:
        print_rows(rows, ["what", unit, "problem"], as_json=as_json)
    print_note(f"{len(found)} read, {sum(finding.size for finding in found):,} {unit}, {len(problems)} wrong.")
    return int(bool(problems))
