"""How `suppress` becomes a node and a buffer."""

from __future__ import annotations

from headrace.dsl.lookup import send_old
from headrace.dsl.options import Suppressed
from headrace.dsl.place import Place
from headrace.dsl.steps import Operate, Step
from headrace.dsl.stores import store_serde
from headrace.dsl.versioning import grace_of, refuse_suppress
from headrace.state.spec import BufferKind, StoreSpec
from headrace.topology.nodes import Suppress


def suppress(place: Place, suppressed: Suppressed, name: str | None) -> Place:
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
