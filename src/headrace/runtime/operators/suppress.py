"""Suppression: holds updates of a table back until a time limit or the end of their window."""

from __future__ import annotations

from typing import Any

from headrace.errors import StreamsError
from headrace.model.record import Change, Headers
from headrace.runtime.environment import Emit, Env
from headrace.state.buffer import SuppressBuffer, Suppressed
from headrace.topology.nodes import Suppress


def suppress(node: Suppress, buffer: SuppressBuffer, env: Env, emit: Emit, *, old_is_prior: bool) -> Emit:
    """With `old_is_prior`, the old value of an emitted update is the value that was emitted before it.

    Kafka Streams passes the old value of the parent table, which was never emitted if it was held back: an aggregate
    below would subtract a value that was never added. Above an aggregate Headrace passes the emitted value instead.
    """
    here, wait, final = env.here, node.wait, node.final
    observed = env.state.cell(f"{node.name}/stream time", -1)
    max_records, max_bytes = node.max_records, node.max_bytes

    def over_capacity() -> bool:
        too_many = max_records is not None and buffer.count.value > max_records
        return too_many or (max_bytes is not None and buffer.size.value > max_bytes)

    def let_out(place: bytes) -> None:
        update = buffer.look_at(place)
        if update.new is not None or not node.safe_to_drop_tombstones:
            here.metadata = update.metadata
            old = update.prior if old_is_prior else update.old
            emit(update.key, (update.new, old, True), update.timestamp, update.headers)
        buffer.remove(place)  # after the emission: until then a lookup of the key finds the value emitted before

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        observed.value = max(observed.value, timestamp)
        time = key.window.end if final else timestamp
        buffer.put(time, Suppressed(key, value[0], value[1], None, timestamp, headers, here.metadata))
        row, now = here.row, observed.value
        while (oldest := buffer.oldest()) and (oldest[1] <= now - wait or (node.emit_early and over_capacity())):
            let_out(oldest[0])
        here.row = row
        if over_capacity():
            raise StreamsError(
                f"{node.name}: the buffer is full with {buffer.count.value} records and {buffer.size.value} bytes "
                f"(limits: {max_records} records, {max_bytes} bytes). "
                "Give it more room, or let it emit_early_when_full()."
            )

    return run
