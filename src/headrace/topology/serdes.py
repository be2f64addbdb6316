"""Serdes that are known only in part while a topology is built.

The defaults of the configuration are not known yet, so a serde that wraps another one is noted down as what it is to
be; the runtime makes the real serde. None inside means: the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.windows import Windows
from headrace.serde.protocol import Serde


@dataclass(frozen=True, slots=True)
class WindowedOf:
    """Keys in time windows of `size` milliseconds, or of a definition whose windows differ in size."""

    inner: SerdeLike | None
    size: int | Windows


@dataclass(frozen=True, slots=True)
class SessionWindowedOf:
    """Keys in session windows."""

    inner: SerdeLike | None


@dataclass(frozen=True, slots=True)
class ChangeOf:
    """New and old value in one: what travels to the aggregate of a grouped table."""

    inner: SerdeLike | None


@dataclass(frozen=True, slots=True)
class SubscriptionOf:
    """What the left side of a foreign-key join tells the right side; it holds the left table's key."""

    primary_key: SerdeLike | None


@dataclass(frozen=True, slots=True)
class ResponseOf:
    """What the right side of a foreign-key join answers; it holds the right table's value."""

    value: SerdeLike | None


SerdeLike = Serde | WindowedOf | SessionWindowedOf | ChangeOf | SubscriptionOf | ResponseOf
