"""Binds a client's serdes to topics: a serde of a schema registry needs the topic and the client's settings."""

from __future__ import annotations

from typing import Any, Literal

from headrace.config.settings import settings_of
from headrace.log.open import ClientConfig
from headrace.serde.protocol import Serde, SerdeContext, bind_serde


class TopicSerdes:
    """Binds serdes to topics, each once."""

    def __init__(self, config: ClientConfig | None) -> None:
        """`config` are the client's settings; those that begin with `schema.registry.` are for serdes."""
        given = settings_of(config)
        self._settings = {name: value for name, value in given.items() if name.startswith("schema.registry.")}
        self._bound: dict[tuple[Serde[Any], str | None, str], Serde[Any]] = {}

    def bind(self, serde: Serde[Any], topic: str | None, part: Literal["key", "value"]) -> Serde[Any]:
        if serde.bind is None and serde.recipe is None:
            return serde
        found = self._bound.get((serde, topic, part))
        if found is None:
            found = bind_serde(serde, SerdeContext(topic, part, self._settings))
            self._bound[serde, topic, part] = found
        return found
