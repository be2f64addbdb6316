"""The aggregates of the case language: initial value, add, subtract, merge of sessions."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.oracle.functions import Function
from tests.oracle.language import LONG, STRING, BadCase, Spec, Type, num, text


class Aggregate(NamedTuple):
    """What a case calls `agg`."""

    type: Type
    initial: Any
    add: Function  # (key, value, aggregate)
    subtract: Function  # (key, value, aggregate)
    merge: Function  # (key, left, right)


def aggregate(spec: Spec) -> Aggregate:
    match spec:
        case {"fn": "concat"}:
            return Aggregate(STRING, "", appended, taken_out, lambda key, a, b: text(a) + text(b))
        case {"fn": "concat_kv"}:
            return Aggregate(
                STRING,
                "0",
                lambda key, value, so_far: f"{text(so_far)}+{text(key)}={text(value)}",
                lambda key, value, so_far: f"{text(so_far)}-{text(key)}={text(value)}",
                lambda key, a, b: f"({text(a)}|{text(b)})",
            )
        case {"fn": "sum"}:
            return numbers(num)
        case {"fn": "count"}:
            return numbers(lambda value: 1)
        case {"fn": "stats"}:
            return Aggregate(STRING, "", add_to_stats, take_from_stats, merge_stats)
        case {"fn": "topn", "n": n}:
            return Aggregate(
                STRING,
                "",
                lambda key, value, so_far: top([*longs(so_far), num(value)], n),
                take_from_top,
                lambda key, a, b: top(longs(a) + longs(b), n),
            )
        case {"fn": "null_on", "s": s}:
            return Aggregate(
                STRING,
                "",
                lambda key, value, so_far: None if text(value) == s else appended(key, value, so_far),
                lambda key, value, so_far: None if text(value) == s else f"{text(so_far)}-{text(value)};",
                lambda key, a, b: f"{text(a)}&{text(b)}",
            )
    raise BadCase(f"unknown aggregate {spec}")


def numbers(weight: Function) -> Aggregate:
    """A sum of what each value weighs."""
    return Aggregate(
        LONG,
        0,
        lambda key, value, so_far: num(so_far) + weight(value),
        lambda key, value, so_far: num(so_far) - weight(value),
        lambda key, a, b: num(a) + num(b),
    )


def appended(key: Any, value: Any, so_far: Any) -> str:
    return f"{text(so_far)}{text(value)};"


def taken_out(key: Any, value: Any, so_far: Any) -> str:
    """The first occurrence goes; what is not there is noted with a minus."""
    part, whole = f"{text(value)};", text(so_far)
    return whole.replace(part, "", 1) if part in whole else f"{whole}-{part}"


# ------------------------------------------------------------------------------------- the n largest, "9,7,7"
def longs(so_far: Any) -> list[int]:
    return [int(part) for part in text(so_far).split(",")] if text(so_far) else []


def top(found: list[int], n: int) -> str:
    return ",".join(map(str, sorted(found, reverse=True)[:n]))


def take_from_top(key: Any, value: Any, so_far: Any) -> str:
    kept = longs(so_far)
    if num(value) in kept:
        kept.remove(num(value))
    return ",".join(map(str, kept))


# ------------------------------------------------------------------------ "minimum|count|sum|average times 100"
def stats(minimum: int, count: int, total: int) -> str:
    average = abs(total * 100) // count  # Java's division truncates toward zero
    return f"{minimum}|{count}|{total}|{average if total >= 0 else -average}"


def stats_in(so_far: Any) -> list[int] | None:
    return [int(part) for part in text(so_far).split("|")[:3]] if text(so_far) else None


def add_to_stats(key: Any, value: Any, so_far: Any) -> str:
    return merge_stats(key, so_far, stats(num(value), 1, num(value)))


def take_from_stats(key: Any, value: Any, so_far: Any) -> str:
    old = stats_in(so_far)
    return stats(old[0], old[1] - 1, old[2] - num(value)) if old and old[1] > 1 else ""


def merge_stats(key: Any, a: Any, b: Any) -> str:
    left, right = stats_in(a), stats_in(b)
    if not left or not right:
        return text(a if left else b)
    return stats(min(left[0], right[0]), left[1] + right[1], left[2] + right[2])
