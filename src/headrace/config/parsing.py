"""Parsers of settings: from the text or object that a user gives to the value.

A parser raises a `ValueError` that says what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

StoreKind = Literal["persistent", "memory"]
Guarantee = Literal["exactly_once", "at_least_once"]
Trigger = Literal["real-time", "micro-batch"]
Handler = Literal["fail", "continue", "dead_letter"] | Callable[..., Any]

_T = TypeVar("_T")

OPTIMIZATIONS = frozenset({"reuse.ktable.source.topics", "merge.repartition.topics", "single.store.self.join"})

_TRIGGERS: dict[str, Trigger] = {"real-time": "real-time", "micro-batch": "micro-batch"}
_GUARANTEES: dict[str, Guarantee] = {
    "exactly_once": "exactly_once",
    "exactly_once_v2": "exactly_once",
    "exactly_once_beta": "exactly_once",
    "at_least_once": "at_least_once",
}
_HANDLERS: dict[str, Handler] = {
    "fail": "fail",
    "continue": "continue",
    "dead_letter": "dead_letter",
    "LogAndFailExceptionHandler": "fail",
    "LogAndContinueExceptionHandler": "continue",
    "LogAndFailProcessingExceptionHandler": "fail",
    "LogAndContinueProcessingExceptionHandler": "continue",
    "DefaultProductionExceptionHandler": "fail",
}
_STORES: dict[str, StoreKind] = {
    "persistent": "persistent",
    "memory": "memory",
    "rocksdb": "persistent",
    "in_memory": "memory",
    "rocksdbdslstoresuppliers": "persistent",
    "inmemorydslstoresuppliers": "memory",
}


def text(value: Any) -> str:
    """A text that is not empty.

    >>> text(" shop ")
    'shop'
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ValueError("give a text that is not empty")


_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_name(name: str) -> bool:
    """Whether Kafka accepts a name, of a topic for instance. Such a name is a file name, too.

    >>> is_legal_name("shop-2"), is_legal_name("../shop"), is_legal_name("..")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def application_id(value: Any) -> str:
    """A name that is legal in Kafka: it is part of the names of topics, transactional ids and directories.

    >>> application_id("shop-2"), application_id("../shop")
    Traceback (most recent call last):
    ...
    ValueError: an id has letters, digits, '.', '_' and '-', at most 249 of them, and is not '.' or '..'
    """
    given = text(value)
    if not is_legal_name(given):
        raise ValueError("an id has letters, digits, '.', '_' and '-', at most 249 of them, and is not '.' or '..'")
    return given


def ports(value: Any) -> tuple[int, int]:
    """The first and the last of some ports.

    >>> ports("7000-7099"), ports(7000)
    ((7000, 7099), (7000, 7000))
    """
    if isinstance(value, tuple):
        value = "-".join(map(str, value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", str(value))
    if found is not None:
        first, last = int(found[1]), int(found[2] or found[1])
        if 0 < first <= last < 65_536:
            return first, last
    raise ValueError("give a port, or the first and the last one as 7000-7099")


def whole(value: Any, *, at_least: int | None = 0) -> int:
    """A whole number, given as such or as text.

    >>> whole(" 10 ")
    10
    """
    try:
        number = int(value) if isinstance(value, str) or type(value) is int else None
    except ValueError:
        number = None
    if number is None or (at_least is not None and number < at_least):
        raise ValueError("give a whole number" + ("" if at_least is None else f" of at least {at_least}"))
    return number


def offset_reset(value: Any) -> str | int:
    """Where to start reading: a word, or a duration back from now.

    >>> offset_reset("by_duration:P1DT2H"), offset_reset("latest")
    (93600000, 'latest')
    """
    if isinstance(value, (int, timedelta)):
        return milliseconds(value)
    word, _, duration = str(value).partition(":")
    ago = iso_duration(duration) if word == "by_duration" else None
    if ago is not None:
        return ago
    if value in {"earliest", "latest", "none"}:
        return value
    raise ValueError("give earliest, latest, none, by_duration:PnDTnHnMnS, or so many milliseconds back")


def iso_duration(text: str) -> int | None:
    """The milliseconds of an ISO 8601 duration, PnDTnHnMnS; None if the text is not one.

    >>> iso_duration("P1DT2H"), iso_duration("PT1.5S"), iso_duration("1 day")
    (93600000, 1500, None)
    """
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?", text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def time_scope(value: Any) -> str:
    """The scope of stream time: each task has its own, or all tasks of the application share one."""
    if value not in {"task", "application"}:
        raise ValueError("give task or application")
    return value


def positive(value: Any) -> int:
    """A whole number of at least 1."""
    return whole(value, at_least=1)


def any_whole(value: Any) -> int:
    """A whole number, negative ones too."""
    return whole(value, at_least=None)


def milliseconds(value: Any) -> int:
    """A duration: milliseconds or a timedelta.

    >>> milliseconds(timedelta(seconds=2))
    2000
    """
    if isinstance(value, timedelta):
        value = value // timedelta(milliseconds=1)
    try:
        return whole(value)
    except ValueError:
        raise ValueError("give milliseconds, at least 0, or a timedelta") from None


def yes_or_no(value: Any) -> bool:
    """True or false, as a bool or as text.

    >>> yes_or_no("TRUE")
    True
    """
    answer = {"true": True, "false": False}.get(str(value).strip().lower())
    if answer is None:
        raise ValueError("give true or false")
    return answer


def guarantee(value: Any) -> Guarantee:
    """A processing guarantee, under Kafka's older names too.

    >>> guarantee("exactly_once_v2")
    'exactly_once'
    """
    if value == "at_most_once":
        raise ValueError("records would be lost in a crash, so it is not offered: give exactly_once or at_least_once")
    return _one_of(_GUARANTEES, value)


def trigger(value: Any) -> Trigger:
    """What begins a batch.

    >>> trigger("micro-batch")
    'micro-batch'
    """
    return _one_of(_TRIGGERS, value)


def handler(value: Any) -> Handler:
    """What to do with a record that fails: a word, a function or the name of one of Kafka's handlers."""
    if callable(value):
        return value
    return _one_of(_HANDLERS, value.rpartition(".")[2] if isinstance(value, str) else value)


def store_kind(value: Any) -> StoreKind:
    """Where tables are kept: a word, the name of one of Kafka's supplier classes, or a class of that name.

    >>> store_kind("org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers")
    'memory'
    """
    name = value.__name__ if isinstance(value, type) else value
    return _one_of(_STORES, name.replace("$", ".").rpartition(".")[2].lower() if isinstance(name, str) else name)


def store_format(value: Any) -> str:
    """The format of the DSL's stores.

    >>> store_format("headers")
    'HEADERS'
    """
    formats = {name: name for name in ("DEFAULT", "PLAIN", "HEADERS")}
    return _one_of(formats, value.upper() if isinstance(value, str) else value)


def replication_factor(value: Any) -> int:
    """How many copies a topic has: at least 1, or -1 for the default of the broker.

    >>> replication_factor("3")
    3
    """
    number = whole(value, at_least=None)
    if number < 1 and number != -1:
        raise ValueError("give at least 1, or -1 for the broker's default")
    return number


def optimization(value: Any) -> frozenset[str]:
    """The optimizations to apply, from "none", "all" or some of their names.

    >>> sorted(optimization("merge.repartition.topics,single.store.self.join"))
    ['merge.repartition.topics', 'single.store.self.join']
    """
    names = {part.strip() for part in value.split(",")} if isinstance(value, str) else set(value or ())
    if names <= {"none"}:
        return frozenset()
    if names == {"all"}:
        return OPTIMIZATIONS
    if names <= OPTIMIZATIONS:
        return frozenset(names)
    raise ValueError(f'give "none", "all", or some of {", ".join(sorted(OPTIMIZATIONS))}')


def as_given(value: Any) -> Any:
    """The value itself: `runtime.serdes` and `runtime.compile` parse serdes and extractors."""
    return value


def _one_of(meanings: dict[str, _T], value: Any) -> _T:
    try:
        return meanings[value]
    except (KeyError, TypeError):
        raise ValueError(f"give one of {', '.join(meanings)}") from None
