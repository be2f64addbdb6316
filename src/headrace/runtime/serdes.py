"""Real serdes for what the topology notes down, once the defaults are known."""

from __future__ import annotations

from headrace.serde.change import change_serde
from headrace.serde.primitives import BYTES
from headrace.serde.protocol import Serde
from headrace.serde.subscription import response_serde, subscription_serde
from headrace.serde.undeclared import UNDECLARED
from headrace.serde.windowed import session_windowed, windowed
from headrace.topology.serdes import (
    ChangeOf,
    ResponseOf,
    SerdeLike,
    SessionWindowedOf,
    SubscriptionOf,
    WindowedOf,
)


class Serdes:
    """Makes serdes, with the configuration's defaults where none was given."""

    def __init__(self, key: Serde, value: Serde | None) -> None:
        """`value` None: none is configured."""
        self.default_key, self.default_value = key, value or BYTES
        self._default_inside = value or UNDECLARED

    def key(self, wanted: SerdeLike | None) -> Serde:
        return self._make(wanted, self.default_key)

    def value(self, wanted: SerdeLike | None) -> Serde:
        """For values that come from outside or go there."""
        return self._make(wanted, self.default_value)

    def inner_value(self, wanted: SerdeLike | None) -> Serde:
        """For values that stay inside: nobody else reads their bytes, so any value that has a form will do."""
        return self._make(wanted, self._default_inside)

    def _make(self, wanted: SerdeLike | None, default: Serde) -> Serde:
        match wanted:
            case None:
                return default
            case WindowedOf(inner, size):
                return windowed(self._make(inner, default), size)
            case SessionWindowedOf(inner):
                return session_windowed(self._make(inner, default))
            case ChangeOf(inner):
                return change_serde(self._make(inner, default))
            case SubscriptionOf(primary_key):
                return subscription_serde(self._make(primary_key, self.default_key))
            case ResponseOf(value):
                return response_serde(self._make(value, default))
            case Serde():
                return wanted
