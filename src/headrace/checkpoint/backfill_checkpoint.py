"""The checkpoint of a backfill: it fills new stores, and the application's next manifest takes over their rows.

    place = backfill_address(checkpoint)                    inside the application's checkpoint
    begin_backfill(storage, …, Ranges(starts, stops))       its first manifest: which offsets are read again
    …                                                       the part of the topology that leads to the stores runs there
    FilledStores(storage, ledger, numbers, stores)          `carry_over` takes the rows of the stores from these
    discard_backfill(checkpoint)                            afterwards, and at the next start after a crash

The application's checkpoint does not change before the manifest that has the filled stores. After a crash it still has
the old form, and the next start begins the backfill again.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from headrace.checkpoint.change_plan import ChangePlan
from headrace.checkpoint.files import manifest_name, read_blob
from headrace.checkpoint.fingerprint import Fingerprint, SubtopologyShape
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest_builder import ManifestBuilder
from headrace.checkpoint.outbox import decode_rows
from headrace.checkpoint.storage import DiskStorage, Storage, open_storage
from headrace.errors import CheckpointMismatchError, StreamsError
from headrace.log.protocol import Extent
from headrace.model.ids import TopicPartition
from headrace.topology.ancestry import Ancestry
from headrace.topology.subtopologies import plan as plan_subtopologies

FOLDER = "backfill"


class Ranges(NamedTuple):
    """The offsets that a backfill reads: from `starts` up to, but without, `stops`."""

    starts: Mapping[TopicPartition, int]
    stops: Mapping[TopicPartition, int]

    @property
    def records(self) -> int:
        return sum(stop - self.starts[at] for at, stop in self.stops.items())


class FilledStores(NamedTuple):
    """Stores that a backfill has filled, and the checkpoint that has them.

    `numbers` maps sub-topologies of the whole topology to those of the backfill.
    """

    storage: Storage
    ledger: Ledger
    numbers: Mapping[int, int]
    stores: frozenset[str]


class Progress(NamedTuple):
    """How far a backfill is: the stores that it fills, the offsets that it has read, and how many there are in all."""

    stores: tuple[str, ...]
    records: int
    of_records: int
    is_done: bool = False


def ignore_progress(_progress: Progress) -> None:
    """Does nothing."""


class Backfill(Protocol):
    """Fills the new stores of a plan from history, up to `positions`. Calls `renew` meanwhile to keep the lease."""

    def __call__(
        self, plan: ChangePlan, ledger: Ledger, positions: Mapping[TopicPartition, int], renew: Callable[[], None]
    ) -> FilledStores: ...


def backfill_address(checkpoint: str) -> str:
    """Returns where the backfill of a checkpoint is.

    >>> backfill_address("s3://bucket/shop?region=eu")
    's3://bucket/shop/backfill?region=eu'
    """
    path, mark, options = checkpoint.partition("?")
    return f"{path.rstrip('/')}/{FOLDER}{mark}{options}"


def discard_backfill(checkpoint: str) -> None:
    """Deletes what a backfill has left in a checkpoint."""
    storage = open_storage(checkpoint)
    if isinstance(storage, DiskStorage):
        folder = storage.directory / FOLDER
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
        return
    for name in storage.names(f"{FOLDER}/"):
        storage.delete(name)


def find_ranges(extents: Mapping[TopicPartition, Extent], positions: Mapping[TopicPartition, int]) -> Ranges:
    """Returns the offsets from the beginning of the log up to some positions."""
    stops = {at: max(positions[at], extent.earliest) for at, extent in extents.items() if at in positions}
    return Ranges({at: extents[at].earliest for at in stops}, stops)


def form_of_part(part: Ancestry, whole: Fingerprint) -> Fingerprint:
    """Returns the fingerprint that the backfill begins with: task counts, and which topics have grown."""
    shapes = {shape.number: shape for shape in whole.groups}
    groups = [
        SubtopologyShape(
            number,
            tuple(sorted((*stage.topics, *stage.inputs))),
            shapes[part.numbers[number]].tasks,
            (),
            shapes[part.numbers[number]].grown_from,
        )
        for number, stage in plan_subtopologies(part.graph).stages.items()
    ]
    partitions = {name: topic.partitions or 1 for name, topic in part.graph.internal_topics.items()}
    return Fingerprint(tuple(groups), (), partitions)


def begin_backfill(
    storage: Storage, application: str, fingerprint: Fingerprint, topics: Mapping[str, str], ranges: Ranges
) -> None:
    """Writes the first manifest of a backfill. `topics` has the ids of the topics that it reads.

    `fingerprint` has the task counts, and which source topics have grown.
    """
    ledger = Ledger()
    ledger.stops = dict(ranges.stops)
    builder = ManifestBuilder(
        checkpoint=secrets.token_hex(8),
        application=application,
        epoch=0,
        positions=ranges.starts,
        topics=topics,
        fingerprint=fingerprint,
    )
    manifest, data = builder.build(ledger, full_up_to=0)
    if not storage.create(manifest_name(manifest.number), data):
        raise StreamsError(f"another process has just begun a backfill in {storage.describe()}")


def check_rows_in_flight(storage: Storage, ledger: Ledger, plan: ChangePlan, topics: Collection[str]) -> None:
    """Raises an error if rows of internal topics that a backfill reads wait in the checkpoint.

    The backfill would count them, and the application would count them again.
    """
    prefix = f"{ledger.application}-"
    for rows in ledger.carried:
        for batch in decode_rows(read_blob(storage, rows.blob, "carried rows"), rows.blob.name):
            topic = batch.at.topic.removeprefix(prefix)
            if plan.topics.get(topic) in topics:
                what = f"rows for the internal topic {topic} wait in the checkpoint"
                raise CheckpointMismatchError(
                    f"{what}, and a backfill would process them twice. Start the earlier program once more and stop it "
                    "after it has caught up (`headrace run --once`), or start this one without --backfill",
                    differences=[what],
                )
