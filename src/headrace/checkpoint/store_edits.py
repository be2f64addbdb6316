"""Changes of single stores in a checkpoint whose application is not running: rename, remove, prune.

Each change is one manifest, so it happens as a whole or not at all. With these changes the user decides what
`change_plan` cannot know: whether a store was renamed, or one store was removed and another one added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from headrace.checkpoint.carry_over import carry_over, delete_rows
from headrace.checkpoint.change_plan import ARCHIVE, REPARTITION, ChangePlan, Origin
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions
from headrace.checkpoint.files import manifest_name
from headrace.checkpoint.fingerprint import Fingerprint, Lineage, RemovedStore, StoreShape
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest_builder import CarriedOver, ManifestBuilder
from headrace.checkpoint.ownership import Ownership
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.steps import TAKEOVER, step
from headrace.checkpoint.storage import Storage
from headrace.errors import FencedError, StreamsError, UnknownStoreError
from headrace.state.spec import checked_name
from headrace.topology.naming import is_generated

Edit = Callable[[Ledger, Fingerprint], tuple[Fingerprint, CarriedOver | None]]


def rename_store(storage: Storage, old: str, new: str, hooks: CommitHooks | None = None) -> None:
    """Gives a store another name in the checkpoint. Renaming a store to its own generated name confirms that name."""
    checked_name(new)

    def edit(ledger: Ledger, before: Fingerprint) -> tuple[Fingerprint, CarriedOver | None]:
        _find_shape(before, old)
        if new != old and new in _names(before) | {removed.shape.name for removed in before.removed}:
            raise StreamsError(
                f"the checkpoint has a store {new} already: rename that first, or delete the data of a removed one "
                f"with `headrace state prune {new}`"
            )
        now = _with_new_name(before, old, new)
        return now, carry_over(_plan_rename(ledger, before, now, old, new), storage, ledger, {})

    _edit(storage, edit, hooks)


def remove_store(storage: Storage, name: str, hooks: CommitHooks | None = None) -> None:
    """Marks a store as removed: the next topology need not have it. Its data stays until it is pruned."""

    def edit(ledger: Ledger, before: Fingerprint) -> tuple[Fingerprint, CarriedOver | None]:
        shape, number, tasks = _find_shape(before, name)
        groups = tuple(
            group._replace(stores=tuple(store for store in group.stores if store.name != name))
            for group in before.groups
        )
        global_stores = tuple(store for store in before.global_stores if store.name != name)
        lineage = before.lineages.get(name, Lineage())
        removed = (*before.removed, RemovedStore(shape, number, tasks, ledger.number, lineage))
        return replace(before, groups=groups, global_stores=global_stores, removed=removed), None

    _edit(storage, edit, hooks)


def prune_stores(storage: Storage, names: Collection[str] = (), hooks: CommitHooks | None = None) -> list[str]:
    """Deletes the data of removed stores, all of them or those with some names. Returns their names."""
    pruned: list[str] = []

    def edit(ledger: Ledger, before: Fingerprint) -> tuple[Fingerprint, CarriedOver | None]:
        known = {removed.shape.name for removed in before.removed}
        for name in sorted(set(names) - known):
            raise UnknownStoreError(name, sorted(known))
        pruned[:] = sorted(names or known)
        kept = tuple(removed for removed in before.removed if removed.shape.name not in pruned)
        gone = [removed for removed in before.removed if removed.shape.name in pruned]
        needed = {removed.subtopology for removed in kept}
        stores = {(removed.subtopology, removed.shape.name) for removed in gone if removed.subtopology < ARCHIVE}
        tasks = delete_rows(storage, ledger, stores)
        tasks = {task: head for task, head in tasks.items() if task.subtopology < ARCHIVE or task.subtopology in needed}
        carried = tuple((rows.target, rows.origin, rows.blob) for rows in ledger.carried)
        return replace(before, removed=kept), CarriedOver(tasks, carried)

    _edit(storage, edit, hooks)
    return pruned


# ------------------------------------------------------------------------------------------------------------ renaming
def _with_new_name(before: Fingerprint, old: str, new: str) -> Fingerprint:
    """Returns the fingerprint with another name of a store, also where internal topics are named after it."""

    def topic(name: str) -> str:
        return new + REPARTITION if name == old + REPARTITION and name in before.partitions else name

    def shape(store: StoreShape) -> StoreShape:
        return store._replace(name=new) if store.name == old else store

    return replace(
        before,
        groups=tuple(
            group._replace(reads=tuple(sorted(map(topic, group.reads))), stores=tuple(map(shape, group.stores)))
            for group in before.groups
        ),
        global_stores=tuple(map(shape, before.global_stores)),
        partitions={topic(name): count for name, count in before.partitions.items()},
        operators=tuple(
            operator._replace(stores=tuple(new if store == old else store for store in operator.stores))
            for operator in before.operators
        ),
        lineages={new if store == old else store: lineage for store, lineage in before.lineages.items()},
        decided=(*before.decided, new) if is_generated(new) else before.decided,
    )


def _plan_rename(ledger: Ledger, before: Fingerprint, now: Fingerprint, old: str, new: str) -> ChangePlan:
    numbers = range(len(before.groups) + bool(before.global_stores))
    places = {name: _find_shape(before, name)[1] for name in _names(before)}
    return ChangePlan(
        application=ledger.application,
        batch=ledger.number,
        changes=(),
        before=before,
        fingerprint=now,
        origins={number: number for number in numbers},
        archived={},
        stores={new if name == old else name: Origin(name, number) for name, number in places.items()},
        operators={(operator.subtopology, operator.name): operator.name for operator in before.operators},
        topics=dict(zip(before.partitions, now.partitions, strict=True)),
        unclear_topics=frozenset(),
        rebuilt=frozenset(),
        migrated=frozenset(),
    )


def _names(fingerprint: Fingerprint) -> set[str]:
    stores = {store.name for group in fingerprint.groups for store in group.stores}
    return stores | {store.name for store in fingerprint.global_stores}


def _find_shape(fingerprint: Fingerprint, name: str) -> tuple[StoreShape, int, int]:
    """Returns a store with its sub-topology and the number of tasks that have it."""
    for group in fingerprint.groups:
        for store in group.stores:
            if store.name == name:
                return store, group.number, group.tasks
    for store in fingerprint.global_stores:
        if store.name == name:
            return store, len(fingerprint.groups), 1
    raise UnknownStoreError(name, sorted(_names(fingerprint)))


# -------------------------------------------------------------------------------------------------------- the manifest
def _edit(storage: Storage, edit: Edit, hooks: CommitHooks | None) -> None:
    """Owns the checkpoint for the time of an edit, and writes the manifest that the edit makes."""
    hooks = hooks or CommitHooks()
    ledger = recover_ledger(storage, CommitOptions().keep)
    if ledger.fingerprint is None:
        raise StreamsError(f"{storage.describe()} has no batch yet: start the application first")
    ownership = Ownership.claim(
        storage,
        hooks.clock,
        process=hooks.process,
        lease_ms=CommitOptions().lease_ms,
        last_epoch=ledger.epoch,
        has_exited=hooks.has_exited,
        threads=hooks.threads,
    )
    try:
        ledger = recover_ledger(storage, CommitOptions().keep)
        if ledger.fingerprint is None:
            raise StreamsError(f"{storage.describe()} has no batch any more: it was reset meanwhile")
        fingerprint, carried_over = edit(ledger, ledger.fingerprint)
        builder = ManifestBuilder(
            checkpoint=ledger.checkpoint,
            application=ledger.application,
            epoch=ownership.epoch,
            clock=ledger.clock,
            delivered=ledger.delivered,
            fingerprint=fingerprint,
            changelogs=ledger.changelogs,
            carried_over=carried_over,
        )
        manifest, data = builder.build(ledger, full_up_to=0)
        with step(TAKEOVER, hooks.at_step):
            is_created = storage.create(manifest_name(manifest.number), data)
        if not is_created:
            raise FencedError(f"another instance has taken over {storage.describe()}, and nothing was changed here")
    finally:
        ownership.release()
