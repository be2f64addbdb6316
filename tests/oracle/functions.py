"""The functions of the case language, by name: predicates, mappers, selectors, joiners, reducers and so on.

They come in tables. An entry is a function, whose parameters after the first two (three for joiners) are the arguments
that a case gives it, beside the type of what it returns where that matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace import Record, Windowed
from tests.oracle.language import LONG, STRING, BadCase, Spec, Type, Types, characters, length, num, text, utf16

Function = Callable[..., Any]


def same(given: Type) -> Type:
    """Returns what it is given, or None."""
    return given


def inner(given: Type) -> Type:
    """Returns the key inside a windowed key."""
    return given.inner or given


Returns = Type | Callable[[Type], Type]


def returned(returns: Returns, given: Type) -> Type:
    return returns if isinstance(returns, Type) else returns(given)


def of_value(f: Function) -> Function:
    """None for a value that is None."""
    return lambda key, value, **args: None if value is None else f(value, **args)


def of_key(f: Function) -> Function:
    """None for a key that is None."""
    return lambda key, value, **args: None if key is None else f(key, **args)


def if_value(f: Function) -> Function:
    """False for a value that is None."""
    return lambda key, value, **args: value is not None and f(value, **args)


def if_key(f: Function) -> Function:
    """False for a key that is None."""
    return lambda key, value, **args: key is not None and f(key, **args)


# -------------------------------------------------------------------------------------------------------- pieces
def field(value: Any, sep: str, index: int) -> str:
    fields = text(value).split(sep)
    return fields[index] if index < len(fields) else ""


def prefix(value: Any, sep: str = ":") -> str | None:
    start, found, _ = text(value).partition(sep)
    return start if found else None


def first_character(x: Any) -> str | None:
    return next(iter(characters(text(x))), None)


def words(value: Any) -> list[str]:
    return [] if value is None else [word for word in text(value).split(" ") if word]


def distinct_characters(value: Any) -> list[str]:
    return [] if value is None else list(dict.fromkeys(characters(text(value))))


def copies(value: Any, n: int) -> list[str | None]:
    return [None if value is None else f"{text(value)}#{number}" for number in range(n)]


def largest(a: Any, b: Any) -> Any:
    """The first on ties; longs as numbers, all else as text."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if utf16(text(a)) >= utf16(text(b)) else b


def smallest(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return a if utf16(text(a)) <= utf16(text(b)) else b


def pair(left: Any, right: Any) -> str:
    return f"({text(left)},{text(right)})"


# ------------------------------------------------------------------------------------------------------- the tables
PREDICATES: dict[str, Function] = {
    "always": lambda key, value: True,
    "never": lambda key, value: False,
    "value_contains": if_value(lambda value, s: s in text(value)),
    "value_eq": if_value(lambda value, s: text(value) == s),
    "value_gt": if_value(lambda value, n: num(value) > n),
    "value_lt": if_value(lambda value, n: num(value) < n),
    "value_even": if_value(lambda value: num(value) % 2 == 0),
    "value_not_null": lambda key, value: value is not None,
    "value_null": lambda key, value: value is None,
    "key_not_null": lambda key, value: key is not None,
    "key_eq": if_key(lambda key, s: text(key) == s),
    "key_contains": if_key(lambda key, s: s in text(key)),
    "field_gt": if_value(lambda value, sep, index, n: num(field(value, sep, index)) > n),
}

VALUE_MAPPERS: dict[str, tuple[Returns, Function]] = {
    "identity": (same, lambda key, value: value),
    "upper": (STRING, of_value(lambda value: text(value).upper())),
    "append": (STRING, of_value(lambda value, s: text(value) + s)),
    "length": (LONG, of_value(lambda value: length(text(value)))),
    "parse_long": (LONG, of_value(num)),
    "to_string": (STRING, of_value(text)),
    "add": (LONG, of_value(lambda value, n: num(value) + n)),
    "mod": (LONG, of_value(lambda value, n: num(value) % n)),
    "field": (STRING, of_value(field)),
    "null_if_contains": (same, of_value(lambda value, s: None if s in text(value) else value)),
    "with_key": (STRING, lambda key, value: f"{text(key)}:{text(value)}"),
    "key_as_value": (STRING, of_key(text)),
    "const": (STRING, lambda key, value, s: s),
    "null_to": (STRING, lambda key, value, s: s if value is None else text(value)),
}

KEY_SELECTORS: dict[str, tuple[Returns, Function]] = {
    "same": (same, lambda key, value: key),
    "value_as_key": (STRING, of_value(text)),
    "first_char": (STRING, of_value(first_character)),
    "prefix": (STRING, of_value(prefix)),
    "value_mod": (LONG, of_value(lambda value, n: num(value) % n)),
    "key_append": (STRING, of_key(lambda key, s: text(key) + s)),
    "key_to_string": (STRING, of_key(text)),
    "key_length": (LONG, of_key(lambda key: length(text(key)))),
    "key_first_char": (STRING, of_key(first_character)),
    "const_key": (STRING, lambda key, value, s: s),
    "null_key": (same, lambda key, value: None),
    "unwindow": (inner, lambda key, value: key.key if isinstance(key, Windowed) else key),
}

FOREIGN_KEYS: dict[str, Function] = {
    "prefix": of_value(prefix),
    "value": of_value(text),
    "key_first_char": of_key(first_character),
}

FLAT_VALUES: dict[str, tuple[Type, Function]] = {
    "words": (STRING, lambda key, value: words(value)),
    "key_words": (STRING, lambda key, value: [f"{text(key)}/{word}" for word in words(value)]),
    "lengths": (LONG, lambda key, value: [length(word) for word in words(value)]),
    "dup": (STRING, lambda key, value, n: copies(value, n)),
}

FLAT_PAIRS: dict[str, tuple[Returns, Returns, Function]] = {
    "words": (STRING, STRING, lambda key, value: [(word, of_key(text)(key, value)) for word in words(value)]),
    "chars": (STRING, same, lambda key, value: [(character, value) for character in distinct_characters(value)]),
    "dup": (same, STRING, lambda key, value, n: [(key, copy) for copy in copies(value, n)]),
}

REDUCERS: dict[str, Function] = {  # (so far, new)
    "concat": lambda a, b: f"{text(a)},{text(b)}",
    "sum": lambda a, b: num(a) + num(b),
    "sub": lambda a, b: num(a) - num(b),
    "last": lambda a, b: b,
    "first": lambda a, b: a,
    "max": largest,
    "min": smallest,
    "concat_reset": lambda a, b, s: None if text(b) == s else f"{text(a)},{text(b)}",
    "remove": lambda a, b: f"{text(a)}-{text(b)}",
}

JOINERS: dict[str, tuple[Callable[[Type, Type], Type], Function]] = {  # (key, left, right)
    "concat": (lambda left, right: STRING, lambda key, a, b: pair(a, b)),
    "concat_key": (lambda left, right: STRING, lambda key, a, b: f"{text(key)}:{pair(a, b)}"),
    "sum": (lambda left, right: LONG, lambda key, a, b: num(a) + num(b)),
    "left": (lambda left, right: left, lambda key, a, b: a),
    "right": (lambda left, right: right, lambda key, a, b: b),
    "null_if_right_contains": (
        lambda left, right: STRING,
        lambda key, a, b, s: None if b is not None and s in text(b) else pair(a, b),
    ),
}


# ------------------------------------------------------------------------------------------- a case's functions
def entry(table: Mapping[str, Any], spec: Spec) -> Any:
    if spec["fn"] not in table:
        raise BadCase(f"unknown function {spec}")
    return table[spec["fn"]]


def arguments(spec: Spec) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != "fn"}


def bound(f: Function, spec: Spec) -> Function:
    """The function of two that is left when the case has given its arguments."""
    args = arguments(spec)
    return lambda a, b: f(a, b, **args)


def predicate(spec: Spec) -> Function:
    return bound(entry(PREDICATES, spec), spec)


def value_mapper(spec: Spec, given: Types) -> tuple[Type, Function]:
    returns, f = entry(VALUE_MAPPERS, spec)
    return returned(returns, given.value), bound(f, spec)


def key_selector(spec: Spec, given: Types) -> tuple[Type, Function]:
    returns, f = entry(KEY_SELECTORS, spec)
    return returned(returns, given.key), bound(f, spec)


def pair_mapper(statement: Spec, given: Types) -> tuple[Types, Function]:
    """Of `map`, and of a table's `groupBy`: both parts see the old key and value."""
    (key, select), (value, change) = key_selector(statement["key"], given), value_mapper(statement["value"], given)
    return Types(key, value), lambda k, v: (select(k, v), change(k, v))


def flat_mapper(spec: Spec, given: Types) -> tuple[Types, Function]:
    key, value, f = entry(FLAT_PAIRS, spec)
    return Types(returned(key, given.key), returned(value, given.value)), bound(f, spec)


def flat_value_mapper(spec: Spec) -> tuple[Type, Function]:
    value, f = entry(FLAT_VALUES, spec)
    return value, bound(f, spec)


def reducer(spec: Spec) -> Function:
    return bound(entry(REDUCERS, spec), spec)


def foreign_key(spec: Spec) -> Function:
    return bound(entry(FOREIGN_KEYS, spec), spec)


def joiner(spec: Spec, left: Types, right: Types, *, with_key: bool) -> tuple[Type, Function]:
    """With the key only where the function wants it and the join can give it."""
    returns, f = entry(JOINERS, spec)
    args, value = arguments(spec), returns(left.value, right.value)
    if with_key and spec["fn"] == "concat_key":
        return value, lambda key, a, b: f(key, a, b, **args)
    return value, lambda a, b: f(None, a, b, **args)


def timestamp_extractor(spec: Spec | None) -> Function | None:
    match spec:
        case None:
            return None
        case {"fn": "record"}:
            return lambda record, partition_time: record.timestamp
        case {"fn": "plus", "ms": ms}:
            return lambda record, partition_time: record.timestamp + ms
        case {"fn": "value_at", **rest}:
            return lambda record, partition_time: time_in_value(record, partition_time, rest.get("missing", "drop"))
    raise BadCase(f"unknown extractor {spec}")


def time_in_value(record: Record, partition_time: int, missing: str) -> int:
    found = re.search(r"@([0-9]{1,15})\Z", text(record.value))
    if found:
        return int(found[1])
    return {"drop": -1, "record": record.timestamp, "partition_time": partition_time}[missing]
