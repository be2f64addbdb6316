"""Records as text, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from headrace.config import Config
from headrace.model.record import Sample
from headrace.model.windows import Windowed
from headrace.query.form import to_form
from headrace.runtime.task import serdes_of
from headrace.serde.protocol import Serde
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source


class ShownRecord(NamedTuple):
    """A record that went into a source or out of a sink; key and value are None where the record has none."""

    topic: str
    partition: int | None  # None: the hash of its key decides
    offset: int | None  # None: it is not in the log yet, or never
    timestamp: int
    key: str | None
    value: str | None


def shown(graph: Graph, config: Config, node: str, samples: Iterable[Sample]) -> list[ShownRecord]:
    """The samples of a node, by its serdes."""
    found = graph.nodes.get(node)
    if not isinstance(found, Source | Sink):
        return []
    topics = found.topics if isinstance(found, Source) else (found.topic,)
    serdes, is_internal = serdes_of(config), any(topic in graph.internal_topics for topic in topics)
    key, value = serdes.key(found.key), (serdes.inner_value if is_internal else serdes.value)(found.value)
    return [
        ShownRecord(
            sample.topic,
            sample.partition if sample.partition >= 0 else None,
            sample.offset if sample.offset >= 0 else None,
            sample.timestamp,
            text_of(sample.key, key, cut=sample.cut),
            text_of(sample.value, value, cut=sample.cut),
        )
        for sample in samples
    ]


def text_of(raw: bytes | None, serde: Serde, *, cut: bool = False) -> str | None:
    r"""What bytes mean by a serde; if they mean nothing by it, or are cut off, the characters in them.

    >>> from headrace import serde
    >>> text_of(b"abc", serde.STRING), text_of(b'{"a": [1]}', serde.JSON), text_of(b"\x00\xff{", serde.JSON)
    ('abc', '{"a":[1]}', '\x00\ufffd{')
    """
    if raw is None:
        return None
    if not cut:
        try:
            return _written(serde.decode(raw))
        except Exception:  # noqa: BLE001, S110 - a serde of the user's may raise anything: its bytes are shown
            pass
    return raw.decode(errors="replace") + "…" * cut


def _written(thing: Any) -> str:
    match thing:
        case str():
            return thing
        case Windowed(key=key, window=window):
            return f"{_written(key)} [{window.start}, {window.end})"
        case bytes():
            return thing.decode(errors="replace")
        case _:
            return orjson.dumps(to_form(thing)).decode()
