"""Stores of the DSL: the meaning of `store=`, the stores of tables and windows, the buffer of `suppress`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from headrace.dsl.logical.graph import Operate, Place, Step
from headrace.dsl.logical.table_properties import grace_of, refuse_suppress, send_old
from headrace.dsl.options import EmitStrategy, Materialized, Suppressed, check_serde
from headrace.dsl.types import K, V
from headrace.model.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windows
from headrace.serde.protocol import Serde
from headrace.state.spec import BufferKind, KeyValueKind, Kind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.topology.naming import Names
from headrace.topology.nodes import SerdeLike, SessionWindowedOf, Suppress, WindowedOf

StoreOption = str | Materialized[K, V] | None
AnyWindows = Windows | SlidingWindows | SessionWindows


def materialized(store: StoreOption[Any, Any], *, value: SerdeLike | None = None) -> Materialized:
    """`store=` as a Materialized, with the serde of `value=` if the store has none."""
    given = Materialized(store) if isinstance(store, str) else store or Materialized()
    if not isinstance(given, Materialized):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"store= is a name or a Materialized, not {given!r}")
    check_serde("value", value)
    return replace(given, value=value) if given.value is None and value is not None else given


def named(given: Materialized, names: Names, prefix: str) -> str:
    """The store's name. A generated name takes a number, as in Kafka Streams."""
    return names.store(prefix) if given.name is None else given.name


def with_serdes(given: Materialized, key: SerdeLike | None, value: SerdeLike | None) -> Materialized:
    """The store with these serdes where it has none."""
    key = key if given.key is None else given.key
    return replace(given, key=key, value=value if given.value is None else given.value)


def table_store(given: Materialized, name: str) -> StoreSpec:
    """The store of a table by key: timestamped, or versioned if it has a history."""
    if given.history is None:
        return _spec(given, name, KeyValueKind(timestamped=True), caching=given.caching)
    spec = _spec(given, name, VersionedKind(cast("int", given.history)), caching=False)
    return replace(spec, persistent=given.kind != "memory")


def window_store(given: Materialized, name: str, windows: AnyWindows, emit: EmitStrategy) -> StoreSpec:
    """The store of a windowed table. With emit-on-close only time windows are cached, as in Kafka Streams."""
    if given.history is not None:
        raise ValueError(f"the store {name!r} is for windows and cannot have a history: give it a retention")
    needed = span(windows)
    retention = needed if given.retention is None else cast("int", given.retention)
    if retention < needed:
        raise ValueError(
            f"the store {name!r} keeps windows for {retention} ms, but they take records for {needed} ms "
            "(their size and grace): use a longer retention or a shorter grace"
        )
    on_close = emit is EmitStrategy.ON_WINDOW_CLOSE
    caching = given.caching and not (on_close and isinstance(windows, SlidingWindows | SessionWindows))
    return _spec(given, name, _window_kind(windows, retention, on_close=on_close), caching=caching)


def span(windows: AnyWindows) -> int:
    """How long a window is needed: until no record can change it."""
    match windows:
        case SessionWindows():
            return windows.gap + windows.grace
        case SlidingWindows():
            return 2 * windows.difference + windows.grace
        case _:
            return getattr(windows, "longest", windows.size) + windows.grace


def windowed_key(windows: AnyWindows, key: SerdeLike | None) -> SerdeLike:
    """The serde of the keys of a windowed table."""
    match windows:
        case SessionWindows():
            return SessionWindowedOf(key)
        case SlidingWindows():
            return WindowedOf(key, windows.difference)
        case _:
            return WindowedOf(key, size_of(windows))


def store_serde(serde: SerdeLike | None) -> Serde | None:
    """A serde for a `StoreSpec`, which takes unfinished ones too until the runtime completes them."""
    return cast("Serde | None", serde)


def _window_kind(windows: AnyWindows, retention: int, *, on_close: bool) -> Kind:
    match windows:
        case SessionWindows():
            return SessionKind(retention)
        case SlidingWindows():
            return WindowKind(retention, windows.difference, timestamped=True, by_time=on_close)
        case _:
            return WindowKind(retention, size_of(windows), timestamped=True, by_time=on_close)


def size_of(windows: Windows) -> int | Windows:
    """The size, or the definition itself where it may make windows of different sizes."""
    return windows.size if isinstance(windows, TimeWindows | UnlimitedWindows) else windows


def _spec(given: Materialized, name: str, kind: Kind, *, caching: bool) -> StoreSpec:
    persistent = None if given.kind is None else given.kind == "persistent"
    return StoreSpec(
        name, kind, store_serde(given.key), store_serde(given.value), persistent,
        logging=given.logging, caching=caching, migrate=given.migrate, migrate_from=given.migrate_from,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- suppress
def suppress(place: Place, suppressed: Suppressed, name: str | None) -> Place:
    """The place below a `suppress` node, which keeps updates in a buffer."""
    node_name = place.draft.names.take("KTABLE-SUPPRESS-") if name is None else name
    if place.step.versioned:
        refuse_suppress(node_name)
    wait = grace_of(place.step) if suppressed.wait is None else suppressed.wait
    store = place.draft.names.store("KTABLE-SUPPRESS-") if name is None else f"{name}-store"
    buffer, final = suppressed.buffer, suppressed.wait is None
    spec = StoreSpec(
        store, BufferKind(), store_serde(place.key), store_serde(place.value), persistent=None, logging=buffer.logging
    )
    send_old(place.step, keep=True)
    node = Suppress(
        node_name,
        store,
        final,
        wait,
        buffer.records,
        buffer.bytes,
        buffer.emit_early,
        safe_to_drop_tombstones=final,
    )
    return place.at(Step(node_name, Operate(node, (spec,)), versioned=False))
