"""Divides the state of a sub-topology among another number of tasks.

    divisions = find_divisions(before, now, layout_of)          sub-topologies whose task count has changed
    rescaled = rescale(storage, ledger, divisions, partitions)  new snapshots, and carried rows, for the next manifest

The task of a key is its hash modulo the number of tasks. So with g, the greatest common divisor of both
numbers, the keys of a new task q lie in the old tasks p with p = q mod g, and nowhere else. A piece of the work is some
new tasks of one such class: it reads the delta chains of the old tasks of the class once, and writes a snapshot for
each of its new tasks. Pieces are independent: Spark runs them, each in a worker, or the calling process does. With a
partitioner of the user (`KeyPartitioner`) the keys of a new task may lie in every old one: there is one class.

Nothing changes until a manifest names the snapshots. That manifest is full and names the snapshots of all tasks, so it
ends the old tasks. After a crash before it the snapshots are garbage, and the old tasks are still there.

Every row is checked: a row that is not in the old task of its key was put there by another partitioner, so the state
cannot be divided by key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, gcd
from typing import NamedTuple

from headrace.checkpoint.files import (
    SNAPSHOTS,
    Blob,
    BlobRef,
    DeltaChain,
    DeltaRef,
    digest_of,
    read_blob,
    read_delta,
    task_file_name,
    write_blob,
)
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.outbox import decode_rows, encode_rows
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import RESCALE, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointMismatchError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.partitioning import CELLS, StateLayout, combine_cells
from headrace.runtime.rows import PartitionBatch, split_batch
from headrace.serde.internal import move_subscription
from headrace.state.buffer import SuppressBuffer
from headrace.state.delta import Delta, encode_delta, merge
from headrace.state.engine import Version
from headrace.state.task_state import PREFIX, table_prefix
from headrace.state.values import Content, decode_cell, encode_cell

_PIECE = 8  # new tasks that a piece writes at most: it holds their state in memory
_INLINE = 1 << 20  # bytes: carried rows up to this size are in the manifest


PartitionOf = Callable[[bytes | None], int]  # from the bytes of a key


class Division(NamedTuple):
    """A sub-topology that had `before` tasks and gets `after`.

    Both numbers are equal for the right side of a foreign-key join of which only the left side is divided: the right
    side stores with each subscription the left task that asked. `askers` has the layout and the new task count of the
    left side, by the topic of the responses.
    """

    subtopology: int
    before: int
    after: int
    layout: StateLayout
    askers: Mapping[str, tuple[StateLayout, int]] = {}

    def find_moves(self) -> dict[bytes | str, PartitionOf]:
        """Returns the functions that choose the new task of an asker.

        The keys are the tables of stored subscriptions, and the topics of new ones.
        """
        found: dict[bytes | str, PartitionOf] = {}
        for table, topic, responses in self.layout.subscribed:
            if responses in self.askers:
                layout, count = self.askers[responses]
                choose = layout.chooser(responses, count, 0)
                found |= {table: choose, topic: choose}
        return found


class Piece(NamedTuple):
    """New tasks that are made of the same old tasks."""

    division: Division
    sources: tuple[tuple[TaskId, DeltaChain], ...]
    targets: tuple[TaskId, ...]
    number: int  # of the manifest that will name the snapshots


class Share(NamedTuple):
    """The snapshot of a new task."""

    task: TaskId
    delta: DeltaRef


class Rescaled(NamedTuple):
    """The tasks of all divided sub-topologies, and the carried rows of the whole application."""

    subtopologies: frozenset[int]
    tasks: Mapping[TaskId, TaskHead]
    carried: tuple[tuple[TaskId, TaskId, Blob | BlobRef], ...]  # target, origin, rows


RunPieces = Callable[[Sequence[Piece], Callable[[Storage, Piece], list[Share]]], Iterable[list[Share]]]


class Progress(NamedTuple):
    """How far the work is: new tasks, entries and bytes that are written."""

    subtopologies: tuple[int, ...]
    tasks: int
    of_tasks: int
    entries: int
    bytes: int


def ignore_progress(_progress: Progress) -> None:
    """Does nothing."""


# ---------------------------------------------------------------------------------------------------------- what to do
def find_divisions(
    before: Fingerprint, now: Fingerprint, layout_of: Callable[[int], StateLayout]
) -> tuple[Division, ...]:
    """Returns the sub-topologies whose task count has changed, and that have state or fewer tasks than before.

    Sub-topologies that store subscriptions of such a sub-topology are included. Raises CheckpointMismatchError if the
    state of a sub-topology cannot be divided by key.
    """
    old, found = {shape.number: shape for shape in before.groups}, list[Division]()
    for shape in now.groups:
        was = old.get(shape.number)
        if was is None or was.tasks == shape.tasks or not (was.stores or shape.tasks < was.tasks):
            continue
        layout = layout_of(shape.number)
        if layout.refusals:
            raise CheckpointMismatchError(
                f"sub-topology {shape.number} has {was.tasks} tasks and cannot be divided among {shape.tasks}: "
                f"{'; '.join(layout.refusals)}",
                differences=list(layout.refusals),
            )
        found.append(Division(shape.number, was.tasks, shape.tasks, layout))
    return tuple(_with_askers(found, now, old.keys(), layout_of))


def _with_askers(
    divisions: Sequence[Division], now: Fingerprint, known: Collection[int], layout_of: Callable[[int], StateLayout]
) -> Iterator[Division]:
    """Adds `askers` to the divisions, and adds the sub-topologies that only store subscriptions of divided ones."""
    by_number = {division.subtopology: division for division in divisions}
    reads = {
        topic: by_number[shape.number] for shape in now.groups if shape.number in by_number for topic in shape.reads
    }
    for shape in now.groups:
        if not divisions or shape.number not in known:
            continue
        division = by_number.get(shape.number)
        layout = division.layout if division else layout_of(shape.number)
        askers = {
            kept.responses: (asker.layout, asker.after)
            for kept in layout.subscribed
            if (asker := reads.get(kept.responses)) is not None
        }
        if division or askers:
            yield (division or Division(shape.number, shape.tasks, shape.tasks, layout))._replace(askers=askers)


def plan_pieces(ledger: Ledger, divisions: Sequence[Division], number: int) -> list[Piece]:
    """Returns the pieces of the work, without classes whose old tasks have no state."""
    pieces: list[Piece] = []
    for division in divisions:
        classes = gcd(division.before, division.after) if division.layout.declared is None else 1
        for residue in range(classes):
            olds = (TaskId(division.subtopology, p) for p in range(residue, division.before, classes))
            sources = tuple((task, chain) for task in olds if (chain := ledger.head(task).chain))
            news = [TaskId(division.subtopology, q) for q in range(residue, division.after, classes)]
            if sources:
                size = ceil(len(news) / ceil(len(news) / _PIECE))
                parts = (tuple(news[at : at + size]) for at in range(0, len(news), size))
                pieces += [Piece(division, sources, part, number) for part in parts]
    return pieces


# --------------------------------------------------------------------------------------------------------- one piece
def divide(storage: Storage, piece: Piece, at_step: AtStep = ignore_step) -> list[Share]:
    """Writes the snapshots of a piece."""
    division, last, moves = piece.division, {}, piece.division.find_moves()
    if division.layout.closed and len(piece.sources) > 1:
        last = {task: dict(_read_cells(storage, task, chain)) for task, chain in piece.sources}
    rows: dict[TaskId, dict[bytes, bytes]] = {task: {} for task in piece.targets}
    cells: defaultdict[str, list[Content]] = defaultdict(lambda: [None] * len(piece.sources))
    for place, (task, chain) in enumerate(piece.sources):
        emitted = _find_emitted(division.layout, last, task)
        for key, value in _read_state(storage, task, chain):
            if key[:PREFIX] == CELLS:
                cells[key[PREFIX:].decode()][place] = decode_cell(value)
                continue
            target = TaskId(task.subtopology, _new_partition(division, task, key))
            if target in rows and not (key[:PREFIX] in emitted and emitted[key[:PREFIX]](key[PREFIX:])):
                move = moves.get(key[:PREFIX])
                rows[target][key] = value if move is None else move_subscription(value, move)
    return [_write_share(storage, piece, task, rows[task], cells, at_step) for task in piece.targets]


def _read_state(storage: Storage, task: TaskId, chain: DeltaChain) -> Iterator[tuple[bytes, bytes]]:
    merged = merge((read_delta(storage, task, delta) for delta in chain), from_nothing=True)
    return ((key, value) for key, value in merged.changes if value is not None)


def _read_cells(storage: Storage, task: TaskId, chain: DeltaChain) -> Iterator[tuple[str, Content]]:
    for key, value in _read_state(storage, task, chain):
        if key[:PREFIX] == CELLS:
            yield key[PREFIX:].decode(), decode_cell(value)


def _find_emitted(
    layout: StateLayout, cells: Mapping[TaskId, Mapping[str, Content]], task: TaskId
) -> dict[bytes, Callable[[bytes], bool]]:
    """Returns, by table, which windows of a task were emitted already and would be emitted again.

    A new task continues from the earliest close time of its old tasks. The windows that the other old tasks have
    emitted after that time are left out.
    """
    found: dict[bytes, Callable[[bytes], bool]] = {}
    for closed in layout.closed if cells else ():
        times = {source: some.get(closed.cell) for source, some in cells.items()}
        first = min(time if isinstance(time, int) else -1 for time in times.values())
        own = times[task]
        if isinstance(own, int) and own > first:
            found[table_prefix(closed.store)] = partial(_is_between, closed.closes_at, first, own)
    return found


def _is_between(closes_at: Callable[[bytes], int], first: int, last: int, place: bytes) -> bool:
    return first < closes_at(place) <= last


def _new_partition(division: Division, task: TaskId, key: bytes) -> int:
    if division.before == division.after:
        return task.partition
    table = division.layout.tables.get(key[:PREFIX])
    if table is None:
        raise CheckpointMismatchError(
            f"task {task} has entries of a store that the topology does not have, so their keys are not known, and "
            "they cannot be divided: remove them first with `headrace state prune`"
        )
    layout = division.layout
    try:
        place = table.route(key[PREFIX:])
        before, after = layout.partition(place, division.before), layout.partition(place, division.after)
    except Exception as error:
        raise CheckpointMismatchError(
            f"a key of store {table.name} in task {task} cannot be read as a key of the topics, so its new task is "
            f"not known: {error}"
        ) from error
    if before != task.partition:
        by, how = "its hash", "by their keys with Kafka's default partitioner"
        if layout.declared is not None:
            by, how = "its KeyPartitioner", "with the KeyPartitioner that the program has now"
        raise CheckpointMismatchError(
            f"store {table.name} has a key in task {task} that by {by} belongs to task {task.subtopology}_{before}: "
            f"the records were not partitioned {how}, so the state cannot be divided by them. Keep the number of "
            "partitions, or put repartition() before the store and reset the application"
        )
    return after


def _write_share(
    storage: Storage,
    piece: Piece,
    task: TaskId,
    rows: dict[bytes, bytes],
    cells: Mapping[str, Sequence[Content]],
    at_step: AtStep,
) -> Share:
    values = {name: combine_cells(name, some) for name, some in cells.items()} | _measure_buffers(piece, rows)
    rows |= {CELLS + name.encode(): encode_cell(value) for name, value in values.items()}
    version = Version(piece.number, new_attempt())
    data = encode_delta(Delta(version, tuple(sorted(rows.items()))))
    name = task_file_name(SNAPSHOTS, task, piece.number, version.attempt)
    with step(RESCALE, at_step):
        storage.create(name, data)
    return Share(task, DeltaRef(*version, len(rows), BlobRef(name, 0, len(data), digest_of(data))))


def _measure_buffers(piece: Piece, rows: Mapping[bytes, bytes]) -> dict[str, Content]:
    """Returns the cells with the count and the size of every suppress buffer."""
    found: dict[str, Content] = {}
    for prefix, name in piece.division.layout.suppressed.items():
        own = [(key[PREFIX:], value) for key, value in rows.items() if key[:PREFIX] == prefix]
        measured = [SuppressBuffer.measure(place, value) for place, value in own]
        found |= {f"{name}/count": sum(count for count, _ in measured), f"{name}/size": sum(s for _, s in measured)}
    return found


# ------------------------------------------------------------------------------------------------------- all of them
def rescale(
    storage: Storage,
    ledger: Ledger,
    divisions: Sequence[Division],
    partitions: Mapping[str, int],
    *,
    run: RunPieces | None = None,
    at_step: AtStep = ignore_step,
    on_progress: Callable[[Progress], None] = ignore_progress,
) -> Rescaled:
    """Divides the state, for the manifest that follows the ledger. `partitions` has the counts of internal topics."""
    number = ledger.number + 1
    pieces = plan_pieces(ledger, divisions, number)
    work = partial(divide, at_step=at_step)
    done = run(pieces, work) if run is not None else (work(storage, piece) for piece in pieces)
    subtopologies = tuple(division.subtopology for division in divisions)
    progress = Progress(subtopologies, 0, sum(len(piece.targets) for piece in pieces), 0, 0)
    due = {target: _first_due(ledger, piece) for piece in pieces for target in piece.targets}
    tasks: dict[TaskId, TaskHead] = {}
    on_progress(progress)
    for shares in done:
        for task, delta in shares:
            tasks[task] = TaskHead((delta,), due[task])
            progress = progress._replace(
                tasks=progress.tasks + 1,
                entries=progress.entries + delta.entries,
                bytes=progress.bytes + delta.blob.size,
            )
        on_progress(progress)
    carried = tuple(_route_carried(storage, ledger, divisions, partitions, number, at_step))
    return Rescaled(frozenset(subtopologies), tasks, carried)


def _first_due(ledger: Ledger, piece: Piece) -> int | None:
    times = (ledger.head(task).due for task, _ in piece.sources)
    return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divider:
    """Divides the state of a checkpoint when it is taken over by a topology with other task counts.

    `run` runs the pieces elsewhere; without it they run in this process.
    """

    layout_of: Callable[[int], StateLayout]  # by sub-topology
    run: RunPieces | None = None
    on_progress: Callable[[Progress], None] = ignore_progress

    def divide(self, storage: Storage, ledger: Ledger, fingerprint: Fingerprint, at_step: AtStep) -> Rescaled | None:
        """Returns the new tasks; None if no sub-topology has another number of tasks."""
        divisions = find_divisions(ledger.fingerprint, fingerprint, self.layout_of) if ledger.fingerprint else ()
        if not divisions:
            return None
        return rescale(
            storage,
            ledger,
            divisions,
            fingerprint.partitions,
            run=self.run,
            at_step=at_step,
            on_progress=self.on_progress,
        )


# ------------------------------------------------------------------------------------------------------ carried rows
def _route_carried(
    storage: Storage,
    ledger: Ledger,
    divisions: Sequence[Division],
    partitions: Mapping[str, int],
    number: int,
    at_step: AtStep,
) -> Iterator[tuple[TaskId, TaskId, Blob | BlobRef]]:
    """Yields the carried rows. Rows for a divided sub-topology go to its new tasks."""
    by_number = {division.subtopology: division for division in divisions}
    for target, origin, blob in ledger.carried:
        division = by_number.get(target.subtopology)
        if division is None:
            yield target, origin, blob
            continue
        found: defaultdict[TaskId, list[PartitionBatch]] = defaultdict(list)
        for batch in decode_rows(read_blob(storage, blob, f"rows that wait for task {target}")):
            topic = batch.at.topic.removeprefix(f"{ledger.application}-")
            _move_askers(batch, division.find_moves().get(topic))
            choose = division.layout.chooser(topic, partitions.get(topic, division.after), batch.at.partition)
            is_divided = division.before != division.after
            for partition, part in split_batch(batch, choose).items() if is_divided else ((target.partition, batch),):
                part.at = TopicPartition(batch.at.topic, partition)
                found[TaskId(target.subtopology, partition)].append(part)
        for task, batches in sorted(found.items()):
            name = task_file_name("carried", origin, number, f"{new_attempt()}-{task}")
            yield task, origin, write_blob(storage, name, encode_rows(batches), inline=_INLINE, at_step=at_step)


def _move_askers(batch: PartitionBatch, move: PartitionOf | None) -> None:
    """Replaces the asking task in carried subscriptions by its new number."""
    if move is not None:
        values = [value and move_subscription(value, move) for value in batch.records.values]
        batch.records = replace(batch.records, values=values)
