"""Turns the serdes that a topology declares into real ones, with the defaults of the configuration.

Also reads the handlers of failed records from the configuration.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.config import Config
from headrace.runtime.failures import Handlers
from headrace.serde.internal import UNDECLARED, change_serde, response_serde, subscription_serde
from headrace.serde.primitives import BYTES, serde_setting
from headrace.serde.protocol import Serde
from headrace.serde.windowed import session_windowed, windowed
from headrace.state.spec import BufferKind, StoreSpec, SubscriptionKind
from headrace.topology.nodes import ChangeOf, ResponseOf, SerdeLike, SessionWindowedOf, SubscriptionOf, WindowedOf


class Serdes:
    """Makes serdes, with the configuration's defaults where none was given."""

    def __init__(self, key: Serde, value: Serde | None) -> None:
        """`value` is None when no default value serde is configured."""
        self.default_key, self.default_value = key, value or BYTES
        self._default_inside = value or UNDECLARED

    def key(self, wanted: SerdeLike | None) -> Serde:
        return self._make(wanted, self.default_key)

    def value(self, wanted: SerdeLike | None) -> Serde:
        """The serde for values that are read from or written to topics of the log."""
        return self._make(wanted, self.default_value)

    def inner_value(self, wanted: SerdeLike | None) -> Serde:
        """The serde for values that stay inside the application; without one declared, plain values are accepted."""
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


def resolved(spec: StoreSpec, serdes: Serdes) -> StoreSpec:
    if isinstance(spec.kind, BufferKind | SubscriptionKind):
        return spec
    return replace(spec, key=serdes.key(spec.key), value=serdes.inner_value(spec.value))


def serdes_of(config: Config) -> Serdes:
    return Serdes(
        serde_setting(config.default_key_serde, "default.key.serde"),
        None
        if config.default_value_serde is None
        else serde_setting(config.default_value_serde, "default.value.serde"),
    )


def handlers_of(config: Config, *, for_globals: bool = False) -> Handlers:
    """The exception handlers of a task; the one that fills global stores has the processing handler only if asked."""
    is_handled = not for_globals or config.processing_exception_handler_global_enabled
    return Handlers(
        config.deserialization_exception_handler,
        config.processing_exception_handler if is_handled else "fail",
        config.production_exception_handler,
        config.errors_dead_letter_queue_topic_name,
        config.log_record_values,
    )
