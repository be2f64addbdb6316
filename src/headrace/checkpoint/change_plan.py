"""Plans how the checkpoint of one topology becomes that of another: what is kept, renamed, moved, new or removed.

    plan = plan_changes(ledger, fingerprint)                 what happens to every sub-topology, store, topic and source
    print(plan.describe())                                   for people
    carried = carry_over(plan, storage, ledger, migrations)  the state in its new form, for one manifest (`carry_over`)

Stores are matched in this order, and never by the number in a generated name alone:

1. a name that the user has given: the store with that name, also one that was removed earlier and comes back;
2. a generated name: the store with the same kind, serdes and operator, the same topics before it and after it. If
   several stores are alike, and their names are not the same as before, the user must decide;
3. a store that got a name, or lost it: as 2, if there is only one such store.

A store that vanishes while a similar one with another given name appears may have been renamed: the user must decide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from headrace.checkpoint.fingerprint import (
    Fingerprint,
    Lineage,
    OperatorShape,
    RemovedStore,
    StoreShape,
    SubtopologyShape,
    compute_fingerprint,
)
from headrace.checkpoint.ledger import Ledger
from headrace.config import Config
from headrace.topology.graph import Graph
from headrace.topology.naming import is_generated
from headrace.topology.subtopologies import Plan

Action = Literal["kept", "renamed", "moved", "rescaled", "new", "removed", "incompatible"]
Subject = Literal["sub-topology", "store", "internal topic", "source"]
ARCHIVE = 1_000_000  # removed sub-topologies get numbers from here on: no topology has so many
_GLOBAL = "(global stores)"  # stands for the topics that fill the global stores
REPARTITION = "-repartition"  # the end of the name of a topic that is named after a store
_TIMELESS = ("KeyValueKind", "LruKind", "SubscriptionKind")  # kinds of stores in which no record is late
_NUMBER = re.compile(r"\d{10}")
_SIGNS: dict[Action, str] = {
    "kept": " ",
    "renamed": "~",
    "moved": "~",
    "rescaled": "~",
    "new": "+",
    "removed": "-",
    "incompatible": "!",
}


class Size(NamedTuple):
    """The entries and bytes of delta chains: an upper limit of what a change reads."""

    entries: int = 0
    bytes: int = 0


NO_SIZE = Size()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens to one sub-topology, store, internal topic or source.

    `size` is what its tasks hold. `decision` says what the user must decide, `choice` what they may choose instead of
    the effect; None if nothing.
    """

    subject: Subject
    name: str
    action: Action
    before: str | None = None  # its name or number in the checkpoint
    effect: str = ""
    size: Size = NO_SIZE
    decision: str | None = None
    choice: str | None = None


class Origin(NamedTuple):
    """Where the data of a store is: in the tasks of a sub-topology of the checkpoint, under a name."""

    store: str
    subtopology: int


class Aside(NamedTuple):
    """Removed stores whose rows move from the tasks of a sub-topology to an archived one, and the archive's number.

    The rows move if a store of the new topology has the same name, or if the tasks are divided: the keys of removed
    stores are not known, so their rows cannot be divided.
    """

    number: int
    stores: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The changes from a checkpoint to a topology, and how they are carried out.

    `fingerprint` is the topology's. It also has the removed stores whose data stays in the checkpoint.
    """

    application: str
    batch: int
    changes: tuple[Change, ...]
    before: Fingerprint
    fingerprint: Fingerprint
    origins: Mapping[int, int]  # new sub-topology -> the old one that it continues
    archived: Mapping[int, int]  # old sub-topology without a successor -> its new number
    stores: Mapping[str, Origin]  # by new name, for stores that have data
    operators: Mapping[tuple[int, str], str]  # (old sub-topology, old name) -> new name
    topics: Mapping[str, str]  # old internal topic -> new one
    unclear_topics: frozenset[str]  # old internal topics with several possible successors
    rebuilt: frozenset[str]  # stores whose logging changed: their rows in local copies are not valid
    migrated: frozenset[str]  # stores whose values get another form
    tasks: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])  # old and new task counts
    set_aside: Mapping[int, Aside] = field(default_factory=dict[int, Aside])  # by old sub-topology
    fillable: frozenset[str] = frozenset()  # new stores, which can be filled from history (`backfill`)

    @property
    def decisions(self) -> list[str]:
        """What the user must decide, one sentence each; none if the application can start."""
        return [change.decision for change in self.changes if change.decision is not None]

    @property
    def has_changes(self) -> bool:
        begun = _unmigrated_stores(self.fingerprint) - _unmigrated_stores(self.before)
        return any(change.action != "kept" for change in self.changes) or bool(self.migrated or begun)

    # ------------------------------------------------------------------------------------------------ its new form
    @property
    def numbers(self) -> list[int]:
        """The new sub-topologies, the task that fills the global stores included."""
        return [group.number for group in _with_globals(self.fingerprint)]

    def _group(self, number: int) -> SubtopologyShape:
        return next(group for group in _with_globals(self.fingerprint) if group.number == number)

    def task_count(self, number: int) -> int:
        """The tasks of a sub-topology before its state is divided."""
        return self.tasks[number][0] if number in self.tasks else self._group(number).tasks

    def old_task_count(self, number: int) -> int:
        """The tasks of a sub-topology of the checkpoint."""
        return next(group.tasks for group in _with_globals(self.before) if group.number == number)

    @property
    def rescaled(self) -> dict[int, tuple[int, int]]:
        """The sub-topologies with state that get another number of tasks: the old number, and the new one."""
        stores = {group.number: group.stores for group in self.before.groups}
        return {
            number: (old, new) for number, (old, new) in self.tasks.items() if new < old or stores[self.origins[number]]
        }

    @property
    def fingerprint_before_rescale(self) -> Fingerprint:
        """The fingerprint of the new form with the old task counts."""
        former = {new: old for old, new in self.topics.items()}
        old = {group.number: group for group in self.before.groups}
        groups = list(self.fingerprint.groups)
        for place, group in enumerate(groups):
            if group.number in self.rescaled:
                was = old[self.origins[group.number]]
                groups[place] = group._replace(tasks=was.tasks, grown_from=was.grown_from)
        partitions = {
            name: self.before.partitions[former[name]] if name in former else count
            for name, count in self.fingerprint.partitions.items()
        }
        return replace(self.fingerprint, groups=tuple(groups), partitions=partitions)

    def stores_of(self, number: int) -> set[str]:
        return {shape.name for shape in self._group(number).stores}

    def operators_of(self, number: int) -> set[str]:
        return {operator.name for operator in self.fingerprint.operators if operator.subtopology == number}

    @property
    def old_operators(self) -> set[tuple[int, str]]:
        return {(operator.subtopology, operator.name) for operator in self.before.operators}

    def merged_into(self, number: int) -> set[int]:
        """The old sub-topologies whose topics a new one reads, without the one that it continues."""
        reads = set(self._group(number).reads)
        found = {
            group.number
            for group in _with_globals(self.before)
            if reads & {self.topics.get(topic, topic) for topic in group.reads}
        }
        return found - {self.origins.get(number)}

    def reader_of(self, topic: str) -> int | None:
        """The new sub-topology that reads an internal topic."""
        return next((group.number for group in self.fingerprint.groups if topic in group.reads), None)

    # ------------------------------------------------------------------------------------------------ for its readers
    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        fields = ("subject", "name", "action", "before", "effect", "decision", "choice")
        return {
            "application": self.application,
            "batch": self.batch,
            "decisions": len(self.decisions),
            "changes": [
                {name: getattr(change, name) for name in fields} | change.size._asdict() for change in self.changes
            ],
        }

    def describe(self) -> str:
        """The plan as text, one line for each thing, in the manner of `terraform plan`."""
        lines = [f"{self.application}, batch {self.batch} of its checkpoint → this topology", ""]
        for change in self.changes:
            was = f" (was {change.before})" if change.before not in (None, change.name) else ""
            lines.append(f"  {_SIGNS[change.action]} {change.subject} {change.name}{was}: {change.action}")
            if change.effect:
                size = f" ({change.size.entries:,} entries, {change.size.bytes:,} bytes)" if change.size.bytes else ""
                lines.append(f"      {change.effect}{size}")
            if change.choice is not None:
                lines.append(f"      or: {change.choice}")
            if change.decision is not None:
                lines.append(f"      decide: {change.decision}")
        counts = [f"{count} {action}" for action in _SIGNS if (count := sum(c.action == action for c in self.changes))]
        lines += ["", f"Plan: {', '.join(counts) or 'nothing'}."]
        if self.decisions:
            lines.append(f"{len(self.decisions)} to decide: the application does not start before.")
        elif self.has_changes:
            lines.append("Nothing to decide: the next start makes these changes, all of them or none.")
        else:
            lines.append("Nothing changes.")
        return "\n".join(lines)


def _unmigrated_stores(fingerprint: Fingerprint) -> set[str]:
    """The stores that have values in an earlier form."""
    shapes = [shape for group in fingerprint.groups for shape in group.stores]
    return {shape.name for shape in (*shapes, *fingerprint.global_stores) if shape.unmigrated}


def without_stores(fingerprint: Fingerprint, names: Collection[str]) -> Fingerprint:
    """Returns a fingerprint that does not have some stores yet: the next plan says again that they are new."""
    groups = tuple(
        group._replace(stores=tuple(shape for shape in group.stores if shape.name not in names))
        for group in fingerprint.groups
    )
    return replace(fingerprint, groups=groups)


# ------------------------------------------------------------------------------------------------- matching of stores
class _Store(NamedTuple):
    """A store of a fingerprint, and where it is."""

    shape: StoreShape
    subtopology: int
    lineage: Lineage

    def looks(self, *, stem: bool, downstream: bool) -> tuple[Any, ...]:
        """Returns what the store holds and where it is, without its name."""
        shape, lineage = self.shape, self.lineage
        return (
            shape.kind,
            shape.key,
            shape.value,
            lineage.upstream,
            _NUMBER.sub("#", shape.name) if stem else "",
            lineage.downstream if downstream else (),
        )


class StoreMatch(NamedTuple):
    """The old store that each new store continues, and the new stores that may continue one of several."""

    pairs: dict[str, str]
    unclear: dict[str, list[str]]


def match_stores(before: Fingerprint, now: Fingerprint) -> StoreMatch:
    """Finds the old store of each new store. The module's docstring has the rules."""
    knows_places = bool(before.lineages)
    old, new = _stores(before, knows_places=knows_places), _stores(now, knows_places=knows_places)
    decided = set(before.decided)
    pairs = {name: name for name in new if name in old and (not is_generated(name) or name in decided)}
    returning = {name for name in new.keys() - old.keys() if find_returning(before, new[name]) is not None}

    def match(
        looks: Callable[[_Store], tuple[Any, ...]], may_pair: Callable[[str, str], bool] = lambda one, other: True
    ) -> None:
        for ours, theirs in _classes(old, new, pairs, looks, without=returning):
            if set(ours) == set(theirs):
                pairs.update({name: name for name in ours})
            elif len(ours) == len(theirs) == 1 and may_pair(theirs[0], ours[0]):
                pairs[ours[0]] = theirs[0]

    def is_named_now(one: str, other: str) -> bool:
        return is_generated(one) != is_generated(other)

    match(lambda store: store.looks(stem=True, downstream=True), _both_generated)
    match(lambda store: store.looks(stem=True, downstream=False), _both_generated)
    match(lambda store: store.looks(stem=False, downstream=True), is_named_now)
    match(lambda store: store.looks(stem=False, downstream=False), is_named_now)
    unclear: dict[str, list[str]] = {}
    for ours, theirs in _classes(
        old, new, pairs, lambda store: store.looks(stem=False, downstream=False), without=returning
    ):
        unclear |= dict.fromkeys(ours, theirs)
    # A store with another kind or serde at the same place is paired, too: the plan says why it does not fit.
    left = sorted(new.keys() & old.keys() - pairs.keys() - set(pairs.values()) - unclear.keys())
    pairs |= {name: name for name in left if old[name].lineage.upstream == new[name].lineage.upstream}
    return StoreMatch(pairs, unclear)


def find_returning(before: Fingerprint, store: _Store) -> RemovedStore | None:
    """Returns the removed store that a new store continues: the one with its name.

    A generated name is not enough: kind, serdes and the topics before the store must be the same, too.
    """
    found = [removed for removed in before.removed if removed.shape.name == store.shape.name]
    if is_generated(store.shape.name):
        found = [
            removed
            for removed in found
            if removed.shape[1:4] == store.shape[1:4] and removed.lineage.upstream in {(), store.lineage.upstream}
        ]
    return max(found, key=lambda removed: removed.batch, default=None)


def _both_generated(one: str, other: str) -> bool:
    return is_generated(one) and is_generated(other)


def _classes(
    old: Mapping[str, _Store],
    new: Mapping[str, _Store],
    pairs: Mapping[str, str],
    looks: Callable[[_Store], tuple[Any, ...]],
    without: Iterable[str],
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the unmatched new and old names of stores that look alike, where there are both."""
    ours, theirs = defaultdict[Any, list[str]](list), defaultdict[Any, list[str]](list)
    taken = set(pairs.values())
    for name in sorted(new.keys() - pairs.keys() - set(without)):
        ours[looks(new[name])].append(name)
    for name in sorted(old.keys() - taken):
        theirs[looks(old[name])].append(name)
    for look in [look for look in ours if look in theirs]:
        yield ours[look], theirs[look]


def _stores(fingerprint: Fingerprint, *, knows_places: bool = True) -> dict[str, _Store]:
    lineages = fingerprint.lineages if knows_places else dict[str, Lineage]()
    return {
        shape.name: _Store(shape, group.number, lineages.get(shape.name, Lineage()))
        for group in _with_globals(fingerprint)
        for shape in group.stores
    }


def _with_globals(fingerprint: Fingerprint) -> list[SubtopologyShape]:
    """The sub-topologies, and the task that fills the global stores as one more."""
    groups = list(fingerprint.groups)
    if fingerprint.global_stores:
        groups.append(SubtopologyShape(len(groups), (_GLOBAL,), 1, fingerprint.global_stores))
    return groups


# ---------------------------------------------------------------------------------- matching of topics, sub-topologies
class TopicMatch(NamedTuple):
    """The new topic that continues each old internal topic, and the old topics that several new ones may continue."""

    pairs: dict[str, str]
    unclear: frozenset[str]


def match_topics(before: Iterable[str], now: Iterable[str], stores: Mapping[str, str]) -> TopicMatch:
    """Finds the new name of each internal topic. `stores` has the old name of each store by its new one.

    >>> match_topics(["a-repartition", "KSTREAM-MAP-0000000002-repartition"],
    ...              ["b-repartition", "KSTREAM-MAP-0000000003-repartition"], {"b": "a"}).pairs
    {'KSTREAM-MAP-0000000002-repartition': 'KSTREAM-MAP-0000000003-repartition', 'a-repartition': 'b-repartition'}
    """
    old, new = set(before), set(now)
    pairs = {name: name for name in old & new if not is_generated(name)}
    for store, was in stores.items():
        name, former = store + REPARTITION, was + REPARTITION
        if name in new - set(pairs.values()) and former in old:
            pairs[former] = name
    ours, theirs = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in sorted(new - set(pairs.values())):
        ours[_NUMBER.sub("#", name)].append(name)
    for name in sorted(old - pairs.keys()):
        theirs[_NUMBER.sub("#", name)].append(name)
    unclear = set[str]()
    for stem, names in theirs.items():
        others = ours.get(stem, [])
        if len(names) == len(others):  # in the order of their numbers: a new operator before them shifts all numbers
            pairs |= dict(zip(names, others, strict=True))
        if others and names != others and len(names) > 1:
            unclear |= set(names)
    return TopicMatch(dict(sorted(pairs.items(), key=lambda pair: pair[1])), frozenset(unclear))


def align_fingerprint(before: Fingerprint | None, graph: Graph, plan: Plan, config: Config) -> Fingerprint | None:
    """Returns a checkpoint's fingerprint with the numbers and names that its parts have in a topology.

    It tells what the topology inherits: task counts, and partition counts of internal topics. Parts that the topology
    does not have are left out.
    """
    if before is None:
        return None
    tasks, partitions = dict.fromkeys(plan.stages, 1), dict.fromkeys(graph.internal_topics, 1)
    now = compute_fingerprint(graph, plan, config, tasks=tasks, partitions=partitions)
    stores = match_stores(before, now)
    topics = match_topics(before.partitions, now.partitions, stores.pairs).pairs
    places = _stores(before)
    origins = _match_groups(
        before, now, {new: Origin(old, places[old].subtopology) for new, old in stores.pairs.items()}, topics
    )
    old = {group.number: group for group in before.groups}
    groups = tuple(old[was]._replace(number=number) for number, was in sorted(origins.items()) if was in old)
    return replace(before, groups=groups, partitions={new: before.partitions[old] for old, new in topics.items()})


def _match_groups(
    before: Fingerprint, now: Fingerprint, stores: Mapping[str, Origin], topics: Mapping[str, str]
) -> dict[int, int]:
    """Returns for each new sub-topology the old one that it continues: the one with which it shares most."""
    shared: list[tuple[int, int, int, int, int]] = []
    for new in _with_globals(now):
        origins = [stores[shape.name].subtopology for shape in new.stores if shape.name in stores]
        for old in _with_globals(before):
            kept = origins.count(old.number)
            reads = len({topics.get(topic, topic) for topic in old.reads} & set(new.reads))
            if kept or reads:
                shared.append((-kept, -reads, abs(new.number - old.number), new.number, old.number))
    found: dict[int, int] = {}
    for *_, new_number, old_number in sorted(shared):
        if new_number not in found and old_number not in found.values():
            found[new_number] = old_number
    return found


def _match_operators(
    before: Fingerprint, now: Fingerprint, stores: Mapping[str, Origin], origins: Mapping[int, int]
) -> dict[tuple[int, str], str]:
    """Returns the new names of operators: those of the same kind with the same stores, in the same order."""
    ours, theirs = defaultdict[Any, list[OperatorShape]](list), defaultdict[Any, list[OperatorShape]](list)
    for operator in now.operators:
        places = tuple(stores.get(store) for store in operator.stores)
        ours[operator.kind, places, origins.get(operator.subtopology) if not places else None].append(operator)
    for operator in before.operators:
        places = tuple(Origin(store, operator.subtopology) for store in operator.stores)
        theirs[operator.kind, places, operator.subtopology if not places else None].append(operator)
    found: dict[tuple[int, str], str] = {}
    for key, olds in theirs.items():
        news = {operator.name for operator in ours.get(key, [])}
        same = {operator.name for operator in olds} & news
        left = [operator.name for operator in ours.get(key, []) if operator.name not in same]
        for operator in olds:
            if operator.name in same:
                found[operator.subtopology, operator.name] = operator.name
            elif left:
                found[operator.subtopology, operator.name] = left.pop(0)
    return found


# ------------------------------------------------------------------------------------------------------------ the plan
def plan_changes(
    ledger: Ledger,
    now: Fingerprint,
    *,
    migrations: Mapping[str, str] | None = None,
    refusals: Callable[[int], Sequence[str]] | None = None,
    history: Callable[[str], str | None] | None = None,
    starts: Mapping[str, str] | None = None,
    migrates_all: bool = False,
) -> ChangePlan:
    """Compares a checkpoint with a topology.

    `migrations` has the stores whose values can be migrated, with the name of the serde that they can be migrated from.
    `refusals` says why the state of a sub-topology cannot be divided among another number of tasks; without it no state
    is divided. `history` says from which part of the log a new store can be filled, if from any. `starts` says where
    new sources begin. With `migrates_all`, values are migrated now, and not when they are read.
    """
    return _Planner(ledger, now, migrations or {}, refusals, history, starts or {}, migrates_all=migrates_all).plan()


class _Planner:
    def __init__(
        self,
        ledger: Ledger,
        now: Fingerprint,
        migrations: Mapping[str, str],
        refusals: Callable[[int], Sequence[str]] | None,
        history: Callable[[str], str | None] | None,
        starts: Mapping[str, str],
        *,
        migrates_all: bool,
    ) -> None:
        self.migrates_all, self.unmigrated = migrates_all, dict[str, str]()  # stores with the serde of their old values
        before = ledger.fingerprint or now
        self.ledger, self.before, self.now = ledger, before, now
        self.migrations, self.refusals, self.history, self.starts = migrations, refusals, history, starts
        self.old, self.new = _stores(before), _stores(now)
        self.match = match_stores(before, now)
        self.stores = {name: Origin(old, self.old[old].subtopology) for name, old in self.match.pairs.items()}
        found = {name: find_returning(before, store) for name, store in self.new.items() if name not in self.stores}
        self.returning = {name: removed for name, removed in found.items() if removed is not None}
        self.stores |= {name: Origin(name, removed.subtopology) for name, removed in self.returning.items()}
        self.topics = match_topics(before.partitions, now.partitions, self.match.pairs)
        self.origins = _match_groups(before, now, self.stores, self.topics.pairs)
        self.old_groups = {group.number: group for group in _with_globals(before)}
        self.new_groups = {group.number: group for group in _with_globals(now)}
        self.rebuilt, self.migrated = set[str](), set[str]()

    def plan(self) -> ChangePlan:
        numbers = iter(range(self._first_free_number(), ARCHIVE * 2))
        gone = sorted(self.old_groups.keys() - set(self.origins.values()))
        archived = {number: next(numbers) for number in gone if self._has_state(number)}
        removed = list(self._removed(archived))
        aside = self._find_aside(removed, numbers)
        changes = [*self._groups(), *self._store_changes(), *self._internal_topics(), *self._sources()]
        return ChangePlan(
            application=self.ledger.application,
            batch=self.ledger.number,
            changes=tuple(changes),
            before=self.before,
            fingerprint=self._with_unmigrated(replace(self.now, removed=tuple(self._move_aside(removed, aside)))),
            origins=self.origins,
            archived=archived,
            stores=self.stores,
            operators=_match_operators(self.before, self.now, self.stores, self.origins),
            topics=self.topics.pairs,
            unclear_topics=self.topics.unclear,
            rebuilt=frozenset(self.rebuilt),
            migrated=frozenset(self.migrated),
            tasks=self._task_counts(),
            set_aside=aside,
            fillable=frozenset(c.name for c in changes if c.subject == "store" and self._is_fillable(c)),
        )

    def _with_unmigrated(self, fingerprint: Fingerprint) -> Fingerprint:
        def mark(shapes: Iterable[StoreShape]) -> tuple[StoreShape, ...]:
            return tuple(shape._replace(unmigrated=self.unmigrated.get(shape.name, "")) for shape in shapes)

        groups = tuple(group._replace(stores=mark(group.stores)) for group in fingerprint.groups)
        return replace(fingerprint, groups=groups, global_stores=mark(fingerprint.global_stores))

    def _is_fillable(self, change: Change) -> bool:
        """True for a new store whose data the checkpoint keeps. A global store always reads from the first record."""
        is_global = any(shape.name == change.name for shape in self.now.global_stores)
        return change.action == "new" and self.new[change.name].shape.logged and not is_global

    def _first_free_number(self) -> int:
        return max([ARCHIVE - 1, *(task.subtopology for task in self.ledger.tasks)]) + 1

    def _has_state(self, number: int) -> bool:
        return any(head.chain for task, head in self.ledger.tasks.items() if task.subtopology == number)

    def _task_counts(self) -> dict[int, tuple[int, int]]:
        return {
            new: (self.old_groups[old].tasks, self.new_groups[new].tasks)
            for new, old in self.origins.items()
            if self.old_groups[old].tasks != self.new_groups[new].tasks
        }

    def _tasks_before_division(self, number: int) -> int:
        """The tasks of a new sub-topology at the time when stores move to it. Its state is divided after that."""
        old = self.old_groups.get(self.origins.get(number, -1))
        tasks = self.new_groups[number].tasks
        return old.tasks if old is not None and (old.stores or tasks < old.tasks) else tasks

    def _size(self, number: int) -> Size:
        chains = [head.chain for task, head in self.ledger.tasks.items() if task.subtopology == number]
        deltas = [delta for chain in chains for delta in chain]
        return Size(sum(delta.entries for delta in deltas), sum(delta.blob.size for delta in deltas))

    # ------------------------------------------------------------------------------------------------- sub-topologies
    def _groups(self) -> Iterator[Change]:
        for number, group in self.new_groups.items():
            if group.reads != (_GLOBAL,):
                yield self._group(group, self.origins.get(number))
        for number in sorted(self.old_groups.keys() - set(self.origins.values())):
            if self.old_groups[number].reads != (_GLOBAL,):
                effect = "its tasks end; data of stores that did not move stays until `headrace state prune`"
                yield Change(
                    subject="sub-topology", name=str(number), action="removed", effect=effect, size=self._size(number)
                )

    def _group(self, group: SubtopologyShape, origin: int | None) -> Change:
        name = str(group.number)
        if origin is None:
            effect = f"{group.tasks} new tasks, over {_listed(group.reads)}"
            return Change(subject="sub-topology", name=name, action="new", effect=effect)
        old = self.old_groups[origin]
        size = self._size(origin)
        if old.tasks != group.tasks and (old.stores or group.tasks < old.tasks):
            state = f", and its state ({_listed(s.name for s in old.stores)}) is divided again" if old.stores else ""
            effect = f"it had {old.tasks} tasks and gets {group.tasks}{state}{_what_time_decides(old)}"
            why_not = ["it cannot be divided here"] if self.refusals is None else self.refusals(group.number)
            if not why_not:
                return Change(
                    subject="sub-topology", name=name, action="rescaled", before=str(origin), effect=effect, size=size
                )
            advice = f"{'; '.join(why_not)}. Go back to {old.tasks} partitions, or reset the application"
            return Change(
                subject="sub-topology",
                name=name,
                action="incompatible",
                before=str(origin),
                effect=_cannot_rescale(old, group),
                decision=f"{_cannot_rescale(old, group)}: {advice}",
            )
        if origin != group.number:
            effect = "it has another number now: its tasks' state, stream time and carried rows follow"
            return Change(
                subject="sub-topology", name=name, action="moved", before=str(origin), effect=effect, size=size
            )
        effect = f"it had {old.tasks} tasks and gets {group.tasks}" if old.tasks != group.tasks else ""
        return Change(subject="sub-topology", name=name, action="kept", before=str(origin), effect=effect)

    # --------------------------------------------------------------------------------------------------------- stores
    def _store_changes(self) -> Iterator[Change]:
        for name in sorted(self.new):
            yield self._store(name)
        suspects = {old for olds in self.match.unclear.values() for old in olds} | self.new.keys() - self.stores.keys()
        for name in sorted(self.old.keys() - set(self.match.pairs.values())):
            if name not in suspects:
                effect = "its data stays in the checkpoint until `headrace state prune`, so that going back works"
                yield Change(subject="store", name=name, action="removed", before=name, effect=effect)

    def _store(self, name: str) -> Change:
        origin, new = self.stores.get(name), self.new[name]
        if origin is None:
            return self._new_store(name)
        returning = self.returning.get(name)
        old = self.old[origin.store].shape if returning is None else returning.shape
        problem = self._problem(old, new.shape) or self._other_tasks(origin, new, returning)
        if problem is not None:
            what = f"store {name} {problem}"
            advice = "go back, or give the store another name, so that it begins empty"
            if returning is not None:
                advice = f"`headrace state prune {name}` deletes the data of the store that was removed, or go back"
            return Change(
                subject="store", name=name, action="incompatible", before=origin.store, effect=problem,
                decision=f"{what}: {advice}",
            )  # fmt: skip
        effects = [*self._effects(old, new.shape)]
        if returning is not None:
            came = f"it comes back with the data of batch {returning.batch}: it lacks the records since then"
            effects.insert(0, came)
        action: Action = "kept"
        is_moved = self.origins.get(new.subtopology) != origin.subtopology
        size = self._size(origin.subtopology) if is_moved or origin.store != name or effects else NO_SIZE
        if is_moved:
            action = "moved"
            effects.insert(0, f"from sub-topology {origin.subtopology} to {new.subtopology}, with its data")
        elif origin.store != name:
            action = "renamed"
            effects.insert(0, "its data follows")
        return Change(
            subject="store", name=name, action=action, before=origin.store, effect="; ".join(effects), size=size
        )

    def _new_store(self, name: str) -> Change:
        unclear = self.match.unclear.get(name)
        if unclear is None and name in self.old and name not in self.match.pairs.values():
            topics = [_listed(store.lineage.upstream) for store in (self.old[name], self.new[name])]
            what = f"store {name} over {topics[0]} is gone, and a store over {topics[1]} has its name"
            return Change(
                subject="store",
                name=name,
                action="incompatible",
                effect="another store had this name",
                decision=f"{what}: `headrace state rename {name} OTHER-NAME` keeps the data of the old one",
            )
        if unclear is None:
            return self._with_choice(Change(subject="store", name=name, action="new", effect="it begins empty"))
        first = unclear[0]
        many = f"one of {_listed(unclear)}" if len(unclear) > 1 else first
        return Change(
            subject="store", name=name, action="incompatible", effect=f"it may continue {many}",
            decision=f"is store {name} the same as {many}, which is gone? If it is, "
            f"`headrace state rename {first} {name}`; if not, `headrace state remove {first}`",
        )  # fmt: skip

    def _with_choice(self, change: Change) -> Change:
        if any(shape.name == change.name for shape in self.now.global_stores):
            return replace(change, effect="it is filled from the first record on, as every global table")
        if self.history is None or not self._is_fillable(change):
            return change
        found = self.history(change.name)
        return change if found is None else replace(change, choice=f"--backfill fills it from history: {found}")

    def _problem(self, old: StoreShape, new: StoreShape) -> str | None:
        """Returns why a store cannot go on with its data; None if it can."""
        if old.kind != new.kind:
            sizes = [_window_size(shape.kind) for shape in (old, new)]
            if None not in sizes and _without_size(old.kind) == _without_size(new.kind):
                return (
                    f"had windows of {sizes[0]} ms and now has windows of {sizes[1]} ms, and windows of one size "
                    "cannot be made of those of another"
                )
            return f"had the kind {old.kind} and now has {new.kind}"
        if old.key != new.key:
            return f"had the key serde {old.key} and now has {new.key}"
        can_migrate = self.migrations.get(new.name)
        if old.unmigrated and (old.value != new.value or can_migrate != old.unmigrated):
            return (
                f"has values of {old.unmigrated} that are not migrated to {old.value} yet: leave migrate= and "
                "migrate_from= in the program, or first run `headrace state migrate` with the program that has them"
            )
        if old.value not in (new.value, can_migrate):
            return (
                f"had the value serde {old.value} and now has {new.value}: give Materialized(migrate=function, "
                "migrate_from=old serde), or a serde with the old name that reads both"
            )
        return None

    def _other_tasks(self, origin: Origin, new: _Store, returning: RemovedStore | None) -> str | None:
        """Returns why a store cannot move: its sub-topologies have different numbers of tasks."""
        if returning is None and self.origins.get(new.subtopology) == origin.subtopology:
            return None
        old_tasks = returning.tasks if returning else self.old_groups[origin.subtopology].tasks
        tasks = self._tasks_before_division(new.subtopology)
        if old_tasks == tasks:
            return None
        return f"was in {old_tasks} tasks and now is in {tasks}, so that its keys would be in others"

    def _effects(self, old: StoreShape, new: StoreShape) -> Iterator[str]:
        before = old.unmigrated or (old.value if old.value != new.value else "")
        if old.logged != new.logged:
            before = ""
        if before and self.migrates_all:
            self.migrated.add(new.name)
            yield f"its values are migrated from {before} to {new.value}"
        elif before:
            self.unmigrated[new.name] = before
            yield f"its values are migrated from {before} to {new.value} when they are read"
        if old.logged != new.logged:
            self.rebuilt.add(new.name)
            yield "it is logged now, and begins empty" if new.logged else "it is not logged any more, and begins empty"

    def _removed(self, archived: Mapping[int, int]) -> Iterator[RemovedStore]:
        """Returns the stores that stay in the checkpoint although the topology has them no more."""
        successors = {old: new for new, old in self.origins.items()} | dict(archived)
        for removed in self.before.removed:
            if removed is not self.returning.get(removed.shape.name):
                number = successors.get(removed.subtopology, removed.subtopology)
                yield removed._replace(subtopology=number)
        for name in sorted(self.old.keys() - set(self.match.pairs.values())):
            old = self.old[name]
            if old.subtopology in successors and old.shape.logged:
                tasks = self.old_groups[old.subtopology].tasks
                yield RemovedStore(old.shape, successors[old.subtopology], tasks, self.ledger.number, old.lineage)

    def _find_aside(self, removed: Iterable[RemovedStore], numbers: Iterator[int]) -> dict[int, Aside]:
        """Returns the removed stores that cannot stay in their tasks, by old sub-topology."""
        found: dict[int, Aside] = {}
        for store in removed:
            group = self.new_groups.get(store.subtopology)
            if group is None:  # the store is in an archived one already
                continue
            is_divided = self._tasks_before_division(group.number) != group.tasks
            if is_divided or store.shape.name in {shape.name for shape in group.stores}:
                old = self.origins[group.number]
                number, stores = found.get(old) or Aside(next(numbers), frozenset())
                found[old] = Aside(number, stores | {store.shape.name})
        return found

    def _move_aside(self, removed: Iterable[RemovedStore], aside: Mapping[int, Aside]) -> Iterator[RemovedStore]:
        by_group = {number: aside[old] for number, old in self.origins.items() if old in aside}
        for store in removed:
            number, stores = by_group.get(store.subtopology, (store.subtopology, frozenset[str]()))
            yield store._replace(subtopology=number) if store.shape.name in stores else store

    # --------------------------------------------------------------------------------------------------------- topics
    def _internal_topics(self) -> Iterator[Change]:
        former = {new: old for old, new in self.topics.pairs.items()}
        for name, count in self.now.partitions.items():
            old = former.get(name)
            if old is None:
                yield Change(subject="internal topic", name=name, action="new", effect=f"{count} partitions")
                continue
            was = self.before.partitions[old]
            action: Action = "rescaled" if was != count else "kept" if old == name else "renamed"
            effect = f"{was} → {count} partitions" if was != count else ""
            yield Change(subject="internal topic", name=name, action=action, before=old, effect=effect)
        for name in sorted(self.before.partitions.keys() - self.topics.pairs.keys()):
            yield Change(subject="internal topic", name=name, action="removed", before=name)

    def _sources(self) -> Iterator[Change]:
        old, new = _sources_of(self.before), _sources_of(self.now)
        known = {at.topic for at in self.ledger.positions}
        for name in sorted(new):
            if name in old:
                yield Change(subject="source", name=name, action="kept", before=name)
            elif name in known:
                yield Change(subject="source", name=name, action="new", effect="it is read on from where it was left")
            else:
                effect = self.starts.get(name, "auto.offset.reset says where it begins")
                yield Change(subject="source", name=name, action="new", effect=effect)
        for name in sorted(old - new):
            effect = "it is no longer read; its position is kept"
            yield Change(subject="source", name=name, action="removed", before=name, effect=effect)


def _sources_of(fingerprint: Fingerprint) -> set[str]:
    return {topic for group in fingerprint.groups for topic in group.reads if topic not in fingerprint.partitions}


def _cannot_rescale(old: SubtopologyShape, new: SubtopologyShape) -> str:
    names = _listed(shape.name for shape in old.stores)
    state = f", and its state ({names}) would have to be rescaled" if names else ""
    return f"sub-topology {old.number} had {old.tasks} tasks and now has {new.tasks}{state}"


def _what_time_decides(group: SubtopologyShape) -> str:
    """Says what may differ from a run that always had the new number of tasks: only what depends on stream time."""
    timed = [shape.name for shape in group.stores if not shape.kind.startswith(_TIMELESS)]
    if not timed:
        return ""
    return (
        f"; the stream time of a new task is the largest of those that its keys came from, so that a record of "
        f"{_listed(timed)} may be late that was not before"
    )


def _window_size(kind: str) -> str | None:
    found = re.search(r"window_size=(\d+)", kind)
    return found[1] if found else None


def _without_size(kind: str) -> str:
    return re.sub(r"window_size=\d+", "", kind)


def _listed(names: Iterable[str] | Sequence[str]) -> str:
    return ", ".join(names)
