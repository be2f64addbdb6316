"""References to the deltas of a task, and reading one.

The state of a task is its delta chain, applied in order. The first delta of a chain starts from the empty state; each
of the others starts from the version of the delta before it. `compaction` merges deltas, `restore` applies them.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.checkpoint.files import BlobRef, blob_error, read_blob
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, StateCorruptedError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, decode_delta
from headrace.state.engine import Version


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
