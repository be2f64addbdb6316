"""Statements that need no more than what they act on: verbs of one stream, windows, aggregates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import headrace as hr
from tests.oracle import functions as fn
from tests.oracle.aggregates import Aggregate, aggregate
from tests.oracle.language import LONG, BadCase, Spec, Type, Types
from tests.oracle.processors import processor, stores_of
from tests.oracle.windows import windows_of


@dataclass(frozen=True)
class Defined:
    """What a statement defines, under its id."""

    kind: str  # stream, table, global, grouped, grouped table, cogrouped
    it: Any  # of Headrace
    types: Types
    windowed_key: Type | None = None  # of the result, after windowedBy
    first: Aggregate | None = None  # of a cogrouped stream


def joins(subject: Defined) -> dict[str, Callable[..., Any]]:
    """The methods of a stream or table, by the names of their statements."""
    return {"join": subject.it.join, "leftJoin": subject.it.left_join, "outerJoin": subject.it.outer_join}


def record_by_record(s: Spec, subject: Defined) -> Defined:  # noqa: PLR0911 - one match over all operators
    """The verbs of a stream that have no memory, and processors."""
    stream, types, name = subject.it, subject.types, s.get("named")
    match s["op"]:
        case "filter":
            return replace(subject, it=stream.filter(fn.predicate(s["pred"]), name=name))
        case "filterNot":
            return replace(subject, it=stream.filter_not(fn.predicate(s["pred"]), name=name))
        case "peek":
            return replace(subject, it=stream.peek(lambda key, value: None, name=name))
        case "mapValues":
            value, change = fn.value_mapper(s["value"], types)
            return Defined("stream", stream.map_values(change, name=name), Types(types.key, value))
        case "map":
            types, change = fn.pair_mapper(s, types)
            return Defined("stream", stream.map(change, name=name), types)
        case "selectKey":
            key, select = fn.key_selector(s["key"], types)
            return Defined("stream", stream.select_key(select, name=name), Types(key, types.value))
        case "flatMap":
            types, change = fn.flat_mapper(s["flat"], types)
            return Defined("stream", stream.flat_map(change, name=name), types)
        case "flatMapValues":
            value, change = fn.flat_value_mapper(s["flat"])
            return Defined("stream", stream.flat_map_values(change, name=name), Types(types.key, value))
        case "process" | "processValues":
            types, supplier = processor(s["processor"], types)
            method = stream.process if s["op"] == "process" else stream.process_values
            return Defined("stream", method(supplier, *stores_of(s["processor"]), name=name), types)
    raise BadCase(f"unknown operator {s['op']} on a stream")


def windowed_by(s: Spec, subject: Defined) -> Defined:
    windows, key = windows_of(s["windows"], subject.types.key)
    windowed = subject.it.windowed_by(windows)
    if "emit" in s:
        strategies = {"close": hr.EmitStrategy.ON_WINDOW_CLOSE, "update": hr.EmitStrategy.ON_WINDOW_UPDATE}
        windowed = windowed.emit_strategy(strategies[s["emit"]])
    return replace(subject, it=windowed, windowed_key=key)


class Aggregation(NamedTuple):
    """A call that makes a table of a grouped stream or table."""

    method: Callable[..., hr.KTable]
    value: Type
    arguments: list[Any]
    options: dict[str, Any]


def aggregation(s: Spec, subject: Defined, *, merges: bool) -> Aggregation:
    grouped = subject.it
    match s["op"]:
        case "count":
            return Aggregation(grouped.count, LONG, [], {})
        case "reduce":
            reducers = [fn.reducer(s[role]) for role in ("reducer", "subtractor") if role in s]
            return Aggregation(grouped.reduce, subject.types.value, reducers, {})
        case "aggregate":
            part = aggregate(s["agg"]) if "agg" in s else subject.first
            if part is None:
                raise BadCase(f"no aggregate in {s}")
            calls = {"grouped": [part.add], "grouped table": [part.add, part.subtract], "cogrouped": []}
            arguments = [lambda: part.initial, *calls[subject.kind]]
            return Aggregation(grouped.aggregate, part.type, arguments, {"merger": part.merge} if merges else {})
    raise BadCase(f"unknown operator {s['op']} on a {subject.kind} stream")
