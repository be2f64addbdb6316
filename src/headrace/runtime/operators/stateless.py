"""Operators without state: filter, map, flat_map, select_key, peek, foreach, branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.model.record import Headers
from headrace.runtime.environment import Emit
from headrace.topology.nodes import Branch, Filter, FlatMap, FlatMapValues, Foreach, Map, MapValues, Peek, SelectKey


def filter_(node: Filter, emit: Emit) -> Emit:
    keep, negate = node.keep, node.negate

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if keep(key, value):
            emit(key, value, timestamp, headers)

    def run_negated(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if not keep(key, value):
            emit(key, value, timestamp, headers)

    return run_negated if negate else run


def map_(node: Map, emit: Emit) -> Emit:
    change, name = node.change, node.name

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        pair = change(key, value)
        if not isinstance(pair, tuple) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise TypeError(f"{name}: a function given to map returns a (key, value) pair, not {pair!r}")
        emit(pair[0], pair[1], timestamp, headers)

    return run


def map_values(node: MapValues, emit: Emit) -> Emit:
    change = node.change

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        emit(key, change(key, value), timestamp, headers)

    return run


def flat_map(node: FlatMap, emit: Emit) -> Emit:
    change, name = node.change, node.name

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for pair in change(key, value):
            if not isinstance(pair, tuple) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
                raise TypeError(f"{name}: a function given to flat_map returns (key, value) pairs, not {pair!r}")
            emit(pair[0], pair[1], timestamp, headers)

    return run


def flat_map_values(node: FlatMapValues, emit: Emit) -> Emit:
    change = node.change

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for changed in change(key, value):
            emit(key, changed, timestamp, headers)

    return run


def select_key(node: SelectKey, emit: Emit) -> Emit:
    select = node.select

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        emit(select(key, value), value, timestamp, headers)

    return run


def peek(node: Peek, emit: Emit) -> Emit:
    look = node.look

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        look(key, value)
        emit(key, value, timestamp, headers)

    return run


def foreach(node: Foreach) -> Emit:
    look = node.look

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        look(key, value)

    return run


def branch(node: Branch, children: Mapping[str, Emit]) -> Emit:
    emits = [children[name] for name in node.branches]
    chosen = list(zip(node.predicates, emits, strict=False))
    otherwise = emits[-1] if len(emits) > len(node.predicates) else None

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for test, emit in chosen:
            if test(key, value):
                emit(key, value, timestamp, headers)
                return
        if otherwise is not None:
            otherwise(key, value, timestamp, headers)

    return run
