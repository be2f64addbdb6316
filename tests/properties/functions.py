"""The functions of the case language that generated topologies use, with the types of what they return."""

from __future__ import annotations

from typing import Any

from tests.oracle.language import LONGEST

Spec = dict[str, Any]
SAME = "same"  # the type of the value, or key, that is given


def fn(name: str, **arguments: Any) -> Spec:
    return {"fn": name, **arguments}


PREDICATES = [
    fn("always"),
    fn("value_not_null"),
    fn("key_not_null"),
    fn("key_eq", s="a"),
    fn("key_contains", s="a"),
    fn("value_contains", s="a"),
    fn("value_contains", s="1"),
    fn("value_gt", n=3),
    fn("value_lt", n=5),
    fn("value_even"),
    fn("value_null"),
]

VALUE_MAPPERS = [
    (fn("identity"), SAME),
    (fn("append", s="!"), "string"),
    (fn("upper"), "string"),
    (fn("length"), "long"),
    (fn("parse_long"), "long"),
    (fn("add", n=-2), "long"),
    (fn("mod", n=3), "long"),
    (fn("to_string"), "string"),
    (fn("with_key"), "string"),
    (fn("null_if_contains", s="a"), SAME),
    (fn("null_if_contains", s="3"), SAME),
]
STREAM_VALUE_MAPPERS = [*VALUE_MAPPERS, (fn("null_to", s="0"), "string"), (fn("key_as_value"), "string")]

KEY_SELECTORS = [
    (fn("const_key", s="k"), "string"),
    (fn("key_first_char"), "string"),
    (fn("key_append", s="x"), "string"),
    (fn("first_char"), "string"),
    (fn("value_as_key"), "string"),
    (fn("value_mod", n=2), "long"),
]
PLAIN_KEY_SELECTORS = [(fn("same"), SAME), (fn("key_length"), "long"), (fn("prefix"), "string"), (fn("null_key"), SAME)]

FLAT_VALUES = [
    (fn("dup", n=2), "string"),
    (fn("words"), "string"),
    (fn("key_words"), "string"),
    (fn("lengths"), "long"),
]
FLAT_PAIRS = [(fn("dup", n=2), (SAME, "string")), (fn("chars"), ("string", SAME)), (fn("words"), ("string", "string"))]

AGGREGATES = [
    (fn("count"), "long"),
    (fn("sum"), "long"),
    (fn("concat"), "string"),
    (fn("concat_kv"), "string"),
    (fn("stats"), "string"),
    (fn("topn", n=3), "string"),
    (fn("null_on", s="a"), "string"),
]
REDUCERS = {
    "long": [fn("sum"), fn("last"), fn("first"), fn("max"), fn("min")],
    "string": [fn("concat"), fn("last"), fn("max"), fn("min"), fn("concat_reset", s="a")],
}
REDUCERS_WITH_SUBTRACTORS = {"long": (fn("sum"), fn("sub")), "string": (fn("concat"), fn("remove"))}

JOINERS = [
    (fn("concat"), "string"),
    (fn("sum"), "long"),
    (fn("left"), SAME),
    (fn("null_if_right_contains", s="1"), "string"),
]
STREAM_JOINERS = [*JOINERS, (fn("concat_key"), "string")]

FOREVER = 1_000_000_000  # longer than what records lie apart
GRACES = [{}, {"grace_ms": 0}, {"grace_ms": 5}, {"grace_ms": 10}, {"grace_ms": 30}, {"grace_ms": 1000}]
WINDOWS = [
    {"type": "tumbling", "size_ms": 10},
    {"type": "tumbling", "size_ms": 20},
    {"type": "hopping", "size_ms": 10, "advance_ms": 5},
    {"type": "hopping", "size_ms": 20, "advance_ms": 7},
    {"type": "sliding", "diff_ms": 5},
    {"type": "sliding", "diff_ms": 10},
    {"type": "session", "gap_ms": 3},
    {"type": "session", "gap_ms": 10},
    {"type": "unlimited", "start_ms": 3},
]
JOIN_WINDOWS = [
    {"diff_ms": 10},
    {"diff_ms": 0},
    {"diff_ms": 3},
    {"before_ms": 0, "after_ms": 5},
    {"before_ms": 10, "after_ms": 0},
    {"before_ms": 5, "after_ms": 10},
]


def windowed_type(windows: Spec, key: str) -> str:
    """
    >>> windowed_type({"type": "sliding", "diff_ms": 5}, "long")
    'windowed<long,5>'
    """
    match windows["type"]:
        case "session":
            return f"session<{key}>"
        case "unlimited":
            return f"windowed<{key},{LONGEST}>"
        case _:
            return f"windowed<{key},{windows.get('size_ms') or windows['diff_ms']}>"


def inner_type(key: str) -> str | None:
    """The type of the key inside a windowed key, None of another.

    >>> inner_type("windowed<session<long>,5>"), inner_type("session<string>"), inner_type("long")
    ('session<long>', 'string', None)
    """
    kind, _, rest = key.partition("<")
    if kind == "session":
        return rest[:-1]
    return rest.rpartition(",")[0] if kind == "windowed" else None


def typed(result: str, given: str) -> str:
    return given if result == SAME else result
