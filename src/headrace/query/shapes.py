"""Stores as a checkpoint describes them, back from their words; nothing is evaluated, and nothing is unpickled."""

from __future__ import annotations

import ast
from typing import Any

from headrace.commit.fingerprint import StoreShape
from headrace.model.windows import LONGEST, TimeWindows, UnlimitedWindows
from headrace.serde import json, primitives
from headrace.serde.lists import list_of
from headrace.serde.protocol import Serde
from headrace.serde.undeclared import UNDECLARED
from headrace.serde.windowed import session_windowed, windowed
from headrace.state.spec import KeyValueKind, Kind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind

_SERDES = {
    serde.name: serde
    for serde in (
        primitives.STRING, primitives.BYTES, primitives.LONG, primitives.INTEGER, primitives.SHORT, primitives.DOUBLE,
        primitives.FLOAT, primitives.BOOLEAN, primitives.UUID, primitives.VOID, json.JSON, UNDECLARED,
    )
}  # fmt: skip


def spec_of(shape: StoreShape) -> StoreSpec | None:
    """The store of a description; None if it is none that can be asked, or its words do not suffice.

    How long things are kept is not described: whatever has not been removed yet is shown.
    """
    kind = kind_of(shape.kind)
    if kind is None:
        return None
    key, value = serde_named(shape.key) or primitives.BYTES, serde_named(shape.value) or primitives.BYTES
    return StoreSpec(shape.name, kind, key, value, logging=shape.logged)


def kind_of(words: str) -> Kind | None:
    """
    >>> kind_of("KeyValueKind(timestamped=True)")
    KeyValueKind(timestamped=True)
    """
    match _parsed(words):
        case ast.Call(func=ast.Name(id=name), args=[], keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
        case _:
            return None
    match name:
        case "KeyValueKind":
            return KeyValueKind(timestamped=bool(told.get("timestamped")))
        case "LruKind":
            return LruKind(LONGEST)
        case "SessionKind":
            return SessionKind(LONGEST)
        case "VersionedKind":
            return VersionedKind(LONGEST)
        case "WindowKind" if told.get("window_size") is not None:
            duplicates, timestamped = bool(told.get("retain_duplicates")), bool(told.get("timestamped"))
            return WindowKind(LONGEST, told["window_size"], duplicates, timestamped, bool(told.get("by_time")))
        case _:
            return None


def serde_named(name: str) -> Serde | None:
    """The serde of a name, if it is one of Headrace's.

    >>> serde_named("list_of(STRING)"), serde_named("json_of(Trade)"), serde_named("mine")
    (<serde list_of(STRING)>, <serde JSON>, None)
    """
    return _SERDES.get(name) or _made(_parsed(name))


def _made(words: ast.expr | None) -> Serde | None:
    match words:
        case ast.Name(id=name):
            return _SERDES.get(name)
        case ast.Call(func=ast.Name(id="json_of")):
            return json.JSON
        case ast.Call(func=ast.Name(id="list_of"), args=[inner]):
            made = _made(inner)
            return None if made is None else list_of(made)
        case ast.Call(func=ast.Name(id="session_windowed"), args=[inner]):
            made = _made(inner)
            return None if made is None else session_windowed(made)
        case ast.Call(func=ast.Name(id="windowed"), args=[inner, ast.Constant(value=int(size))]):
            made = _made(inner)
            return None if made is None else windowed(made, size)
        case _:
            return None


def _told(words: ast.expr) -> Any:
    match words:
        case ast.Constant(value=value):
            return value
        case ast.Call(func=ast.Name(id="TimeWindows"), keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
            return TimeWindows(told["size"], told["advance"], 0)
        case ast.Call(func=ast.Name(id="UnlimitedWindows"), keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
            return UnlimitedWindows(told["start"])
        case _:
            return None


def _parsed(words: str) -> ast.expr | None:
    try:
        return ast.parse(words, mode="eval").body
    except (SyntaxError, ValueError):
        return None
