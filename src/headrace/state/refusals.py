"""What stores say when they are given what they cannot take."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.model.record import ValueAndTimestamp


def refuse_null_key(store: str, method: str) -> NoReturn:
    raise TypeError(f"{method} of store {store!r} was given None as a key: filter records without a key out")


def checked_pair(store: str, value: Any) -> ValueAndTimestamp | None:
    """What a timestamped store takes: a `ValueAndTimestamp`; one of no value deletes."""
    if not isinstance(value, ValueAndTimestamp):
        raise TypeError(f"store {store!r} is timestamped: put ValueAndTimestamp(value, timestamp), not {value!r}")
    return None if value.value is None else value
