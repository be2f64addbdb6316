"""Carries the state of a checkpoint over to a changed topology, as `change_plan` has planned it.

The result is one full manifest, so the change happens as a whole or not at all: files that are written before the
manifest are garbage if it is never created. What each new task gets:

    the delta chain of the task that it continues, by reference: a new number costs nothing
    + one delta, where rows change: stores that were renamed, that came from other tasks or from a backfill, or whose
      values are migrated

Local copies of tasks with the same number apply that delta; copies of renumbered tasks are restored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.checkpoint.backfill_checkpoint import FilledStores
from headrace.checkpoint.change_plan import ARCHIVE, Aside, ChangePlan
from headrace.checkpoint.files import (
    Blob,
    BlobRef,
    DeltaChain,
    DeltaRef,
    digest_of,
    read_blob,
    read_delta,
    task_file_name,
)
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.manifest_builder import CarriedOver
from headrace.checkpoint.outbox import decode_rows, encode_rows
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import DELTA_WRITTEN, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.errors import CheckpointMismatchError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import PartitionBatch
from headrace.runtime.serdes import resolved, serdes_of
from headrace.state.delta import Delta, encode_delta, merge
from headrace.state.engine import Version
from headrace.state.migration import ValueMigration, find_migration, list_of_new
from headrace.state.task_state import LOGGED, PREFIX, table_prefix, tables_of_store
from headrace.state.values import decode_cell, encode_cell
from headrace.topology.graph import Graph

_CELLS = table_prefix(LOGGED)
_STREAM_TIME = _CELLS + b"task/stream time"
_RECEIVED = _CELLS + b"task/rows "  # how many rows of each internal topic the task has received
_SCHEDULES = (_CELLS + b"task/stream_time", _CELLS + b"task/wall_clock")  # the orders of punctuations, by node names
Rows = dict[bytes, bytes]


@dataclass(slots=True)
class _Edits:
    """What happens to the rows of one new sub-topology. A name that maps to None is deleted."""

    stores: dict[str, str | None] = field(default_factory=dict[str, str | None])  # of the task that is continued
    operators: dict[str, str | None] = field(default_factory=dict[str, str | None])
    incoming: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])  # by old sub-topology
    incoming_operators: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    merged: set[int] = field(default_factory=set[int])  # old sub-topologies whose stream time counts too
    migrated: set[str] = field(default_factory=set[str])  # stores, by new name
    filled: set[str] = field(default_factory=set[str])  # stores whose rows come from a backfill
    filled_operators: set[str] = field(default_factory=set[str])  # operators that have no other stores
    rebuilds: bool = False  # local copies must be restored

    def __bool__(self) -> bool:
        moved = self.stores or self.operators or self.incoming or self.merged
        return bool(moved or self.migrated or self.filled or self.rebuilds)


def find_migrations(graph: Graph, config: Config) -> dict[str, ValueMigration]:
    """Returns the migrations that the stores of a topology ask for."""
    serdes = serdes_of(config)
    found = {name: find_migration(resolved(spec, serdes)) for name, spec in graph.stores.items()}
    return {name: migration for name, migration in found.items() if migration is not None}


def carry_over(
    plan: ChangePlan,
    storage: Storage,
    ledger: Ledger,
    migrations: Mapping[str, ValueMigration],
    *,
    filled: FilledStores | None = None,
    at_step: AtStep = ignore_step,
    on_task: Callable[[], None] = lambda: None,
) -> CarriedOver | None:
    """Returns the state of a checkpoint in the form of a topology; None if its form does not change.

    `filled` has the rows of new stores. `on_task` is called after every task whose rows were rewritten.
    """
    fills = frozenset[str]() if filled is None else filled.stores
    edits = {number: found for number in plan.numbers if (found := _find_edits(plan, number, fills))}
    is_renumbered = any(new != old for new, old in plan.origins.items()) or bool(plan.archived)
    is_rerouted = any(old != new for old, new in plan.topics.items()) or bool(plan.unclear_topics)
    if not edits and not is_renumbered and not (is_rerouted and ledger.carried):
        return None
    successors = {old: new for new, old in plan.origins.items()} | dict(plan.archived)
    tasks: dict[TaskId, TaskHead] = {}
    for task, head in ledger.tasks.items():
        if task.subtopology in successors:
            number = successors[task.subtopology]
            tasks[TaskId(number, task.partition)] = head if number < ARCHIVE else TaskHead(head.chain)
        elif task.subtopology >= ARCHIVE:
            tasks[task] = head
    for number, found in edits.items():
        for partition in range(plan.task_count(number)):
            task = TaskId(number, partition)
            editor = _Editor(storage, ledger, found, plan.origins.get(number), partition, migrations)
            if filled is not None and found.filled:
                editor.fill(filled, TaskId(filled.numbers[number], partition))
            changes = editor.find_changes()
            if changes or found.rebuilds:
                head = tasks.get(task, TaskHead())
                base = () if found.rebuilds else head.chain
                written = editor.whole() if found.rebuilds else changes
                delta = _write_delta(storage, task, ledger.number + 1, written, at_step)
                tasks[task] = TaskHead((*base, delta), head.due)
            on_task()
    for group, aside in plan.set_aside.items():
        for partition in range(plan.old_task_count(group)):
            delta = _archive_rows(storage, ledger, TaskId(group, partition), aside, at_step)
            if delta is not None:
                tasks[TaskId(aside.number, partition)] = TaskHead((delta,))
            on_task()
    return CarriedOver(tasks, tuple(_route_carried(plan, storage, ledger, successors)))


# ------------------------------------------------------------------------------------------------------ what to change
def _find_edits(plan: ChangePlan, number: int, fills: Collection[str]) -> _Edits:
    edits, origin = _Edits(), plan.origins.get(number)
    own = plan.stores_of(number)
    edits.filled = own & set(fills)
    operators = [operator for operator in plan.fingerprint.operators if operator.subtopology == number]
    edits.filled_operators = {some.name for some in operators if some.stores and edits.filled.issuperset(some.stores)}
    for store in sorted(own):
        found = plan.stores.get(store)
        if found is None:
            continue
        if store in plan.rebuilt:
            edits.rebuilds = True
            if found.subtopology == origin:
                edits.stores[found.store] = None
        elif found.subtopology != origin:
            edits.incoming.setdefault(found.subtopology, {})[found.store] = store
        elif found.store != store:
            edits.stores[found.store] = store
        if store in plan.migrated:
            edits.migrated.add(store)
    if origin is not None and origin in plan.set_aside:
        edits.stores |= dict.fromkeys(plan.set_aside[origin].stores)
    elsewhere = {found for store, found in plan.stores.items() if store not in own}
    edits.stores |= {store: None for store, group in elsewhere if group == origin and store not in edits.stores}
    _find_operator_edits(plan, number, edits)
    edits.merged = set(edits.incoming) - {origin} | plan.merged_into(number)
    return edits


def _find_operator_edits(plan: ChangePlan, number: int, edits: _Edits) -> None:
    origin, own = plan.origins.get(number), plan.operators_of(number)
    for (group, old), new in plan.operators.items():
        if new not in own:
            continue
        if group == origin and old != new:
            edits.operators[old] = new
        elif group != origin and group in edits.incoming:
            edits.incoming_operators.setdefault(group, {})[old] = new
    matched = {new for (group, _), new in plan.operators.items() if group == origin}
    # A new operator must not find the cells of an old one that had its name.
    for name in own - matched:
        if origin is not None and (origin, name) in plan.old_operators and name not in edits.operators:
            edits.operators[name] = None


# ----------------------------------------------------------------------------------------------------------- one task
class _Editor:
    """Finds the changed rows of one task."""

    def __init__(
        self,
        storage: Storage,
        ledger: Ledger,
        edits: _Edits,
        origin: int | None,
        partition: int,
        migrations: Mapping[str, ValueMigration],
    ) -> None:
        self._storage, self._ledger, self._edits, self._migrations = storage, ledger, edits, migrations
        self._partition = partition
        self.rows = {} if origin is None else self._read(origin)
        self._changes: dict[bytes, bytes | None] = {}
        self._filled: Rows = {}  # rows of new stores, and of operators that have no other stores
        self._times: list[int] = []  # stream times of other tasks, which count here too

    def fill(self, filled: FilledStores, task: TaskId) -> None:
        """Takes the rows of the stores that a backfill has filled."""
        rows = read_rows(filled.storage, task, filled.ledger.head(task).chain)
        self._filled = dict(select_rows(rows, self._edits.filled, self._edits.filled_operators))
        of_task = (key for key in rows if key in _SCHEDULES or key.startswith(_RECEIVED))
        self._filled |= {key: rows[key] for key in of_task if key not in self.rows}
        if _STREAM_TIME in rows:
            self._times.append(_number(rows[_STREAM_TIME]))

    def _read(self, subtopology: int) -> Rows:
        task = TaskId(subtopology, self._partition)
        return read_rows(self._storage, task, self._ledger.head(task).chain)

    def find_changes(self) -> dict[bytes, bytes | None]:
        edits = self._edits
        self._move(self.rows, edits.stores, edits.operators, is_own=True)
        for group, stores in edits.incoming.items():
            self._move(self._read(group), stores, edits.incoming_operators.get(group, {}), is_own=False)
        for store in edits.migrated:
            self._migrate(store)
        merged = [row for group in edits.merged if (row := self._read(group).get(_STREAM_TIME)) is not None]
        times = [*self._times, *map(_number, merged)]
        own = _number(self.rows[_STREAM_TIME]) if _STREAM_TIME in self.rows else -1
        if max(times, default=-1) > own:
            self._changes[_STREAM_TIME] = encode_cell(max(times))
        self._rename_schedules(edits.operators)
        self._changes |= self._filled  # after the deletions: a removed operator may have had the name
        return self._changes

    def whole(self) -> dict[bytes, bytes | None]:
        return {key: value for key, value in (self.rows | self._changes).items() if value is not None}

    def _move(
        self, rows: Rows, stores: Mapping[str, str | None], operators: Mapping[str, str | None], *, is_own: bool
    ) -> None:
        moved: Rows = {}
        for key, new_key in rename_rows(rows, stores, operators):
            if is_own:
                self._changes[key] = None
            if new_key is not None:
                moved[new_key] = rows[key]
        self._changes |= moved  # after the deletions: names may be swapped

    def _migrate(self, store: str) -> None:
        """Migrates the values that are not listed as new, and deletes the lists."""
        migrate = self._migrations[store].migrate
        rows = {key: value for key, value in (self.rows | self._changes).items() if value is not None}
        for table in (store, f"{store}/past"):
            prefix, part = table_prefix(table), table.removeprefix(store).removeprefix("/")
            listed = table_prefix(list_of_new(table, store))
            for key, value in rows.items():
                if key.startswith(listed):
                    self._changes[key] = None
                elif key.startswith(prefix) and listed + key[PREFIX:] not in rows:
                    self._changes[key] = migrate(part, value)

    def _rename_schedules(self, operators: Mapping[str, str | None]) -> None:
        for key in _SCHEDULES:
            order = decode_cell(self.rows[key]) if key in self.rows else None
            if isinstance(order, bytes) and operators:
                names = [name.partition("/") for name in order.decode().split("\0")]
                renamed = "\0".join(f"{operators.get(node) or node}{slash}{rest}" for node, slash, rest in names)
                if renamed.encode() != order:
                    self._changes[key] = encode_cell(renamed.encode())


def _number(row: bytes) -> int:
    found = decode_cell(row)
    return found if isinstance(found, int) else -1


def read_rows(storage: Storage, task: TaskId, chain: DeltaChain) -> Rows:
    """Reads the state of a task into memory."""
    if not chain:
        return {}
    merged = merge((read_delta(storage, task, delta) for delta in chain), from_nothing=True)
    return {key: value for key, value in merged.changes if value is not None}


def rename_rows(
    rows: Rows, stores: Mapping[str, str | None], operators: Mapping[str, str | None]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields the keys of the rows of some stores and operators, each with its new key; None if the row is deleted."""
    prefixes: dict[bytes, bytes | None] = {}
    for old, new in stores.items():
        for place, table in enumerate(tables_of_store(old)):
            prefixes[table_prefix(table)] = None if new is None else table_prefix(tables_of_store(new)[place])
    for key in rows:
        prefix = key[:PREFIX]
        if prefix == _CELLS:
            name = key[PREFIX:].decode()
            renamed = _rename_cell(name, stores, operators)
            if renamed != name:
                yield key, None if renamed is None else _CELLS + renamed.encode()
        elif prefix in prefixes:
            new_prefix = prefixes[prefix]
            yield key, None if new_prefix is None else new_prefix + key[PREFIX:]


def select_rows(rows: Rows, stores: Collection[str], operators: Collection[str]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows that belong to some stores and operators, their cells included."""
    prefixes = {table_prefix(table) for store in stores for table in tables_of_store(store)}
    for key, value in rows.items():
        if key[:PREFIX] == _CELLS:
            owner = key[PREFIX:].decode().partition("/")[0]
            if owner in operators or owner.removeprefix("store ") in stores:
                yield key, value
        elif key[:PREFIX] in prefixes:
            yield key, value


def _rename_cell(name: str, stores: Mapping[str, str | None], operators: Mapping[str, str | None]) -> str | None:
    """Returns the new name of a cell: of a store, "store NAME/…" or for a buffer "NAME/…", or of an operator."""
    owner, slash, rest = name.partition("/")
    store = owner.removeprefix("store ")
    if store in stores:
        new = stores[store]
        return None if new is None else owner.replace(store, new) + slash + rest
    if owner in operators:
        new = operators[owner]
        return None if new is None else new + slash + rest
    return name


def _write_delta(
    storage: Storage, task: TaskId, number: int, changes: Mapping[bytes, bytes | None], at_step: AtStep
) -> DeltaRef:
    delta = Delta(Version(number, new_attempt()), tuple(sorted(changes.items())))
    data, name = encode_delta(delta), task_file_name("deltas", task, number, delta.version.attempt)
    with step(DELTA_WRITTEN, at_step):
        storage.create(name, data)
    return DeltaRef(*delta.version, len(delta.changes), BlobRef(name, 0, len(data), digest_of(data)))


def delete_rows(storage: Storage, ledger: Ledger, stores: Collection[tuple[int, str]]) -> dict[TaskId, TaskHead]:
    """Returns all tasks without the rows of some stores. `stores` has (sub-topology, name) pairs."""
    tasks = dict(ledger.tasks)
    for task, head in ledger.tasks.items():
        gone: dict[str, str | None] = {store: None for number, store in stores if number == task.subtopology}
        if gone:
            rows = read_rows(storage, task, head.chain)
            changes: dict[bytes, bytes | None] = {key: None for key, _ in rename_rows(rows, gone, {})}
            if changes:
                delta = _write_delta(storage, task, ledger.number + 1, changes, ignore_step)
                tasks[task] = TaskHead((*head.chain, delta), head.due)
    return tasks


def _archive_rows(storage: Storage, ledger: Ledger, task: TaskId, aside: Aside, at_step: AtStep) -> DeltaRef | None:
    """Writes the rows of removed stores for an archived task. Returns None if there are none."""
    rows = read_rows(storage, task, ledger.head(task).chain)
    found: dict[bytes, bytes | None] = {key: rows[key] for key, _ in rename_rows(rows, dict.fromkeys(aside.stores), {})}
    archive = TaskId(aside.number, task.partition)
    return _write_delta(storage, archive, ledger.number + 1, found, at_step) if found else None


# ------------------------------------------------------------------------------------------------------- carried rows
def _route_carried(
    plan: ChangePlan, storage: Storage, ledger: Ledger, successors: Mapping[int, int]
) -> Iterator[tuple[TaskId, TaskId, Blob | BlobRef]]:
    """Yields carried rows under the new names of their topics, for the tasks that read these topics now.

    Rows for a topic that the topology no longer has are dropped.
    """
    prefix = f"{ledger.application}-"
    for rows in ledger.carried:
        found = defaultdict[TaskId, list[PartitionBatch]](list)
        for batch in decode_rows(read_blob(storage, rows.blob, "carried rows"), rows.blob.name):
            topic = batch.at.topic.removeprefix(prefix)
            if topic in plan.unclear_topics:
                raise _unclear_rows(topic)
            new = plan.topics.get(topic)
            reader = None if new is None else plan.reader_of(new)
            if new is not None and reader is not None:
                found[TaskId(reader, rows.target.partition)].append(_with_topic(batch, prefix + new))
        origin = TaskId(successors.get(rows.origin.subtopology, rows.origin.subtopology), rows.origin.partition)
        for target, batches in found.items():
            yield target, origin, encode_rows(batches)


def _with_topic(batch: PartitionBatch, topic: str) -> PartitionBatch:
    at = TopicPartition(topic, batch.at.partition)
    return PartitionBatch(at, batch.offsets, batch.records, list(batch.orders), batch.counts)


def _unclear_rows(topic: str) -> CheckpointMismatchError:
    what = f"rows for the internal topic {topic} wait in the checkpoint, and several new topics may continue it"
    return CheckpointMismatchError(
        f"{what}. Start the earlier topology once more and stop it after it has caught up (`headrace run --once`), or "
        "give the operators names",
        differences=[what],
    )
