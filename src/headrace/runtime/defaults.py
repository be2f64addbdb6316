"""What the configuration says to a task."""

from __future__ import annotations

from dataclasses import replace

from headrace.config import Config
from headrace.runtime.failures import Handlers
from headrace.runtime.serdes import Serdes
from headrace.serde.named import serde_setting
from headrace.state.spec import BufferKind, StoreSpec, SubscriptionKind


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


def handlers_of(config: Config) -> Handlers:
    return Handlers(
        config.deserialization_exception_handler,
        config.processing_exception_handler,
        config.production_exception_handler,
        config.errors_dead_letter_queue_topic_name,
    )
