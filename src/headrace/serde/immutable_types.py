"""Tells whether the values of a type are immutable."""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

_ATOMS = (str, bytes, int, float, bool, complex, NoneType, Decimal, UUID, date, datetime, time, timedelta)


def never_changes(kind: Any) -> bool:
    """True if a value of the type, and whatever it holds, is immutable; False in doubt.

    >>> never_changes(tuple[int, str | None]), never_changes(tuple[list[int]])
    (True, False)
    """
    return _never_changes(kind, frozenset())


def _never_changes(kind: Any, seen: frozenset[Any]) -> bool:
    """A type that holds itself (`seen`) changes only if something else in it does."""
    if kind in _ATOMS or kind is None or kind is Ellipsis or kind in seen:
        return True
    origin = get_origin(kind)
    if origin is Literal:
        return True
    if origin in (Union, UnionType, tuple, frozenset):
        return all(_never_changes(part, seen) for part in get_args(kind))
    if not isinstance(kind, type):
        return False
    if _inherits(kind, Enum):
        return True
    return _is_frozen(kind) and all(_never_changes(hint, seen | {kind}) for hint in _hints(kind))


def _is_frozen(kind: Any) -> bool:
    if is_dataclass(kind):
        return cast("Any", kind).__dataclass_params__.frozen
    config = getattr(kind, "__struct_config__", None)
    return config.frozen if config is not None else _inherits(kind, tuple) and hasattr(kind, "_fields")


def _inherits(kind: Any, parent: type) -> bool:
    return issubclass(kind, parent)


def _hints(kind: Any) -> list[Any]:
    """The types of the fields; those that cannot be resolved here count as ones that change."""
    try:
        return list(get_type_hints(kind).values())
    except (NameError, TypeError, AttributeError):
        return [object]
