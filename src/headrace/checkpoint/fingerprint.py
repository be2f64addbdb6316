"""What a checkpoint presumes of a topology: its sub-topologies, how many tasks they have, and their stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from headrace.config import Config
from headrace.plan.subtopologies import Plan, Stage
from headrace.runtime.serdes import Serdes, resolved, serdes_of
from headrace.serde.protocol import Serde
from headrace.state.spec import StoreSpec
from headrace.topology.graph import Graph

# How long something is kept may change: it says nothing about the bytes that are there.
_FREE = {"retention", "history", "max_entries", "grace"}


class StoreShape(NamedTuple):
    name: str
    kind: str
    key: str
    value: str
    logged: bool


class GroupShape(NamedTuple):
    """A sub-topology: what it reads, as how many tasks it runs, what it remembers."""

    number: int
    reads: tuple[str, ...]
    tasks: int
    stores: tuple[StoreShape, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`partitions` has the counts of the internal topics; global stores belong to no group."""

    groups: tuple[GroupShape, ...]
    global_stores: tuple[StoreShape, ...]
    partitions: Mapping[str, int]


def fingerprint_of(
    graph: Graph, plan: Plan, config: Config, *, tasks: Mapping[int, int], partitions: Mapping[str, int]
) -> Fingerprint:
    """`tasks` is how many each stage runs as, `partitions` those of internal topics: what `plan.copartition` says."""
    serdes = serdes_of(config)
    groups = (_group(stage, tasks[stage.number], graph, serdes) for stage in plan.stages.values())
    of_globals = (_store(graph.stores[name], serdes) for name in sorted(graph.global_stores))
    return Fingerprint(tuple(groups), tuple(of_globals), dict(sorted(partitions.items())))


def _group(stage: Stage, tasks: int, graph: Graph, serdes: Serdes) -> GroupShape:
    reads = (*stage.topics, *stage.patterns, *stage.inputs)
    stores = (_store(graph.stores[name], serdes) for name in sorted(stage.stores) if name not in graph.global_stores)
    return GroupShape(stage.number, tuple(sorted(reads)), tasks, tuple(stores))


def _store(spec: StoreSpec, serdes: Serdes) -> StoreShape:
    spec = resolved(spec, serdes)
    return StoreShape(spec.name, _text(spec.kind), _text(spec.key), _text(spec.value), spec.logging)


def _text(thing: Any) -> str:
    """The same in every process: no addresses, no hashes."""
    if isinstance(thing, Serde):
        return thing.name
    if thing is None or isinstance(thing, bool | int | str):
        return repr(thing)
    if is_dataclass(thing):
        parts = [f"{f.name}={_text(getattr(thing, f.name))}" for f in fields(thing) if f.name not in _FREE]
        return f"{type(thing).__name__}({', '.join(parts)})"
    return type(thing).__qualname__


# ------------------------------------------------------------------------------------------------------- differences
def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """A sentence for each difference that a checkpoint cannot be carried over; nothing if it fits."""
    return [
        *_of_groups({g.number: g for g in before.groups}, {g.number: g for g in now.groups}),
        *_of_stores(_by_store(before), _by_store(now)),
    ]


def _of_groups(before: Mapping[int, GroupShape], now: Mapping[int, GroupShape]) -> Iterator[str]:
    for number in sorted(before.keys() | now.keys()):
        old, new = before.get(number), now.get(number)
        if old is None or new is None:
            yield f"sub-topology {number} is {'new' if old is None else 'gone'}"
            continue
        if old.reads != new.reads:
            yield f"sub-topology {number} read {', '.join(old.reads)} and now reads {', '.join(new.reads)}"
        names = ", ".join(store.name for store in new.stores)
        if new.tasks != old.tasks and (names or new.tasks < old.tasks):
            of_stores = f", and its state ({names}) would have to be rescaled" if names else ""
            yield f"sub-topology {number} had {old.tasks} tasks and now has {new.tasks}{of_stores}"


def _by_store(fingerprint: Fingerprint) -> dict[str, tuple[str, StoreShape]]:
    """Stores by name, with where they are."""
    found = {s.name: (f"sub-topology {g.number}", s) for g in fingerprint.groups for s in g.stores}
    return found | {store.name: ("the global stores", store) for store in fingerprint.global_stores}


def _of_stores(
    before: Mapping[str, tuple[str, StoreShape]], now: Mapping[str, tuple[str, StoreShape]]
) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            yield f"store {name} of {before[name][0]} is gone"
        elif name not in before:
            yield f"store {name} of {now[name][0]} is new"
        else:
            (place, old), (new_place, new) = before[name], now[name]
            if place != new_place:
                yield f"store {name} was in {place} and now is in {new_place}"
            for what, was, is_now in zip(StoreShape._fields, old, new, strict=True):
                if was != is_now:
                    yield f"store {name} had the {_WORDS[what]} {was} and now has {is_now}"


_WORDS = {"kind": "kind", "key": "key serde", "value": "value serde", "logged": "logging"}
