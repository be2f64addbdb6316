"""The names that Kafka Streams generates: a prefix, and a number that counts all operators and stores.

An operator that the user named takes a number, too, so that naming one operator does not rename those after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.errors import TopologyError

_GENERATED = re.compile(r"(?:^|-)(?:KSTREAM|KTABLE|COGROUPKSTREAM)-[A-Z-]+-\d{10}|-STATE-STORE-\d{10}")
LONGEST_NAME = 249
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Names:
    """Counts the names of one topology.

    >>> names = Names()
    >>> names.take("KSTREAM-SOURCE-"), names.given("mine", "KSTREAM-FILTER-"), names.store("KSTREAM-REDUCE-")
    ('KSTREAM-SOURCE-0000000000', 'mine', 'KSTREAM-REDUCE-STATE-STORE-0000000002')
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def take(self, prefix: str) -> str:
        name = f"{prefix}{self._taken:010d}"
        self._taken += 1
        return name

    def store(self, prefix: str) -> str:
        return self.take(f"{prefix}STATE-STORE-")

    def given(self, name: str | None, prefix: str, suffix: str = "") -> str:
        """The user's name with a suffix; without one a generated name."""
        taken = self.take(prefix)
        return taken if name is None else valid_name(valid_name(name) + suffix)


def valid_name(name: str) -> str:
    """The name itself, if operators, stores and topics may have it."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a name is a str, not {name!r}")
    if not name:
        raise TopologyError("a name cannot be empty: leave it out, and one is generated")
    if name in (".", ".."):
        raise TopologyError(f"{name!r} cannot be a name: topics and directories are named after it")
    if len(name) > LONGEST_NAME:
        raise TopologyError(f"the name {name[:20]!r}… has {len(name)} characters, at most {LONGEST_NAME} are allowed")
    if not _LETTERS.issuperset(name):
        raise TopologyError(f"the name {name!r} can only have ASCII letters, digits, '.', '_' and '-': rename it")
    return name


def is_generated(name: str) -> bool:
    """True for a name that Kafka Streams, or Headrace in its way, has made up.

    >>> is_generated("KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"), is_generated("totals-repartition")
    (True, False)
    """
    return _GENERATED.search(name) is not None


def require_given_names(stores: Iterable[str], internal_topics: Iterable[str]) -> None:
    """Raises if a store or an internal topic has a generated name: `ensure.explicit.internal.resource.naming`.

    >>> require_given_names(["totals", "KSTREAM-REDUCE-STATE-STORE-0000000001"], [])
    Traceback (most recent call last):
    ...
    headrace.errors.TopologyError: ensure.explicit.internal.resource.naming is true, but these names are generated: \
state stores: KSTREAM-REDUCE-STATE-STORE-0000000001. Give names: store= where a table is made, name= where a stream is \
grouped, joined, repartitioned or suppressed
    """
    kinds = {
        "state stores": sorted(filter(is_generated, stores)),
        "internal topics": sorted(filter(is_generated, internal_topics)),
    }
    unnamed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    if unnamed:
        raise TopologyError(
            f"ensure.explicit.internal.resource.naming is true, but these names are generated: {unnamed}. Give names: "
            "store= where a table is made, name= where a stream is grouped, joined, repartitioned or suppressed"
        )
