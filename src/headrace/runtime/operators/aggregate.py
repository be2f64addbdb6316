"""Aggregates of a stream by key."""

from __future__ import annotations

from typing import Any

from headrace.model.record import Headers
from headrace.runtime.environment import Env
from headrace.runtime.operators.emit import Emit
from headrace.runtime.tables import forwarder, keyed
from headrace.topology.nodes import StreamAggregate, StreamReduce


def aggregate(node: StreamAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """With `true_old` a new key has no old value; Kafka Streams passes the initial value instead."""
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)
    initialize, add, drop = node.initialize, node.add, env.drop

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        place = place_of(key)
        before, time = get(place), timestamp
        if before is None:
            old = initialize()
        else:
            old = before[0]
            if before[1] > timestamp:
                time = before[1]
        new = add(key, value, old)
        latest = put(place, new, time)
        if before is None and true_old:
            old = None
        if latest is not None:
            forward(place, key, new, old, time, timestamp, headers, latest)

    return run


def reduce(node: StreamReduce, env: Env, emit: Emit) -> Emit:
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)
    add, drop = node.add, env.drop

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        place = place_of(key)
        before, time = get(place), timestamp
        if before is None:
            old, new = None, value
        else:
            old = before[0]
            new = add(old, value)
            if before[1] > timestamp:
                time = before[1]
        latest = put(place, new, time)
        if latest is not None:
            forward(place, key, new, old, time, timestamp, headers, latest)

    return run
