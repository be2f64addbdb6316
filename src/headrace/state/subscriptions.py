"""The subscriptions that the right side of a foreign-key join keeps: which left rows refer to which foreign key.

| length of the foreign key u32 | foreign key | primary key |  →  the subscription
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.serde.internal import Subscription, subscription_serde
from headrace.serde.protocol import Serde
from headrace.state.table import Table


class Subscriptions:
    """Subscriptions by foreign key; those of one foreign key come in the byte order of their primary keys."""

    def __init__(self, table: Table, foreign_key: Serde, primary_key: Serde) -> None:
        self.table, self.foreign_key, self.primary_key = table, foreign_key, primary_key
        self.subscription = subscription_serde(primary_key)

    def _prefix(self, foreign_key: Any) -> bytes:
        encoded = self.foreign_key.encode(foreign_key)
        return len(encoded).to_bytes(4, "big") + encoded

    def add(self, foreign_key: Any, subscription: Subscription) -> None:
        place = self._prefix(foreign_key) + self.primary_key.encode(subscription.primary_key)
        self.table.put(place, self.subscription.encode(subscription))

    def remove(self, foreign_key: Any, primary_key: Any) -> None:
        place = self._prefix(foreign_key) + self.primary_key.encode(primary_key)
        if self.table.get(place) is not None:
            self.table.put(place, None)

    def of(self, foreign_key: Any) -> Iterator[Subscription]:
        prefix = self._prefix(foreign_key)
        for place, raw in self.table.scan(prefix):
            if not place.startswith(prefix):
                return
            yield self.subscription.decode(raw)
