"""`headrace drops`: the records that an application left out, by reason."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.following import Checkpoint
from headrace.cli.options import AsJson
from headrace.cli.printing import Failed, say, show
from headrace.commit.ledger import manifest_numbers, read_manifest
from headrace.commit.storage import open_storage


def drops(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show how many records were dropped since the beginning, by reason."""
    is_there = "://" in checkpoint or Path(checkpoint.removeprefix("file:")).is_dir()  # to look is not to make one
    storage = open_storage(checkpoint) if is_there else None
    numbers = manifest_numbers(storage) if storage else []
    if storage is None or not numbers:
        raise Failed(f"there is no checkpoint in {checkpoint}")
    manifest, _ = read_manifest(storage, numbers[-1])
    rows = [{"reason": reason, "records": count} for reason, count in sorted(manifest.dropped.items())]
    show(rows, ["reason", "records"], as_json=as_json)
    say(f"As of batch {manifest.number}, {sum(manifest.dropped.values())} records in all.")
