"""What a generated statement defines."""

from __future__ import annotations

from dataclasses import dataclass

from tests.properties.claims import Claim
from tests.properties.functions import Spec


@dataclass(frozen=True)
class Node:
    """A stream, a table, or something on the way from one to the other, under its id."""

    id: str
    kind: str  # stream, table, grouped, windowed, grouped table, cogrouped
    key: str
    value: str
    claim: Claim
    region: int
    rekeyed: bool = False  # its keys may have changed: before they matter it is repartitioned
    windows: Spec | None = None  # of what is windowed, and of tables below that
    versioned: int | None = None  # milliseconds of history
    store: str | None = None  # of a table that a processor can look at
    joinable: bool = True  # the table of a windowed cogroup cannot be joined
