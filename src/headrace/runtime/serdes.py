"""Turns the serdes that a topology declares into real ones, with the defaults of the configuration.

Also reads the handlers of failed records from the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from headrace.config import Config
from headrace.model.record import Record
from headrace.runtime.failures import Handlers
from headrace.serde.internal import UNDECLARED, change_serde, response_serde, subscription_serde
from headrace.serde.primitives import BYTES, serde_setting
from headrace.serde.protocol import BoundSerde, Serde, SerdeContext, bind_serde
from headrace.serde.windowed import session_windowed, windowed
from headrace.state.spec import BufferKind, StoreSpec, SubscriptionKind
from headrace.topology import nodes as n
from headrace.topology.graph import Graph, find_upstream
from headrace.topology.nodes import ChangeOf, ResponseOf, SerdeLike, SessionWindowedOf, Sink, SubscriptionOf, WindowedOf


class Serdes:
    """Makes serdes, with the configuration's defaults where none was given.

    Serdes are bound to a topic, because the bytes of some depend on it. The topic of a store is its changelog, as in
    Kafka Streams.
    """

    def __init__(
        self, key: Serde, value: Serde | None, application: str = "", settings: Mapping[str, Any] | None = None
    ) -> None:
        """`value` is None when no default value serde is configured; `settings` are those of the schema registry."""
        self.default_key, self.default_value = key, value or BYTES
        self._default_inside = value or UNDECLARED
        self._application, self._settings = application, settings or {}

    def key(self, wanted: SerdeLike | None, topic: str | None = None) -> Serde:
        return self._bind(self._make(wanted, self.default_key), topic, "key")

    def value(self, wanted: SerdeLike | None, topic: str | None = None) -> Serde:
        """The serde for values that are read from or written to topics of the log."""
        return self._bind(self._make(wanted, self.default_value), topic, "value")

    def inner_value(self, wanted: SerdeLike | None, topic: str | None = None) -> Serde:
        """The serde for values that stay inside the application; without one declared, plain values are accepted."""
        return self._bind(self._make(wanted, self._default_inside), topic, "value")

    def of_join(self, foreign_key: SerdeLike | None, value: SerdeLike | None) -> tuple[Serde, Serde]:
        """The serdes with which both sides of a foreign-key join compare keys and values: same serde, same bytes."""
        names = self.key(foreign_key).name, self.inner_value(value).name
        key_topic, value_topic = (f"{self._application}-{name}-foreign-key-join" for name in names)
        return self.key(foreign_key, key_topic), self.inner_value(value, value_topic)

    def of_store(self, spec: StoreSpec) -> tuple[Serde, Serde]:
        """The serdes of a store's keys and values."""
        topic = f"{self._application}-{spec.name}-changelog"
        return self.key(spec.key, topic), self.inner_value(spec.value, topic)

    def _bind(self, serde: Serde, topic: str | None, part: Literal["key", "value"]) -> Serde:
        return bind_serde(serde, SerdeContext(topic, part, self._settings))

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
    key, value = serdes.of_store(spec)
    return replace(spec, key=key, value=value)


def serdes_of(config: Config) -> Serdes:
    return Serdes(
        serde_setting(config.default_key_serde, "default.key.serde"),
        None
        if config.default_value_serde is None
        else serde_setting(config.default_value_serde, "default.value.serde"),
        config.application_id or "",
        registry_settings(config),
    )


def registry_settings(config: Config) -> dict[str, Any]:
    """The settings of the schema registry: its address, and how to log in there.

    >>> registry_settings(Config.of({"schema.registry.url": "http://127.0.0.1:8081"}))
    {'schema.registry.url': 'http://127.0.0.1:8081'}
    """
    url = {} if config.schema_registry_url is None else {"schema.registry.url": config.schema_registry_url}
    return {**url, **{name: value for name, value in config.extra.items() if name.startswith("schema.registry.")}}


def register_schemas(graph: Graph, config: Config) -> None:
    """Registers the schemas of all sinks and stores, before anything is written: an incompatible one is an error."""
    serdes, application = serdes_of(config), config.application_id or ""
    found: list[Serde] = []
    for node in graph.nodes.values():
        if isinstance(node, Sink) and isinstance(node.topic, str):
            internal = node.topic in graph.internal_topics
            topic = f"{application}-{node.topic}" if internal else node.topic
            found += [serdes.key(node.key, topic), serdes.value(node.value, topic)]
    for spec in graph.stores.values():
        if not isinstance(spec.kind, BufferKind | SubscriptionKind):
            found += serdes.of_store(spec)
    for serde in found:
        _register(serde)


def _register(serde: Serde) -> None:
    if isinstance(serde, BoundSerde):
        serde.register()
    for inner in serde.recipe[1] if serde.recipe else ():
        if isinstance(inner, Serde):
            _register(cast("Serde[Any]", inner))


# ------------------------------------------------------------------------------------------------------ missing serdes
# These nodes forward keys or values unchanged, so an operator above these nodes made the keys or values.
_SAME = (n.Filter, n.Peek, n.PassThrough, n.Branch, n.TableToStream, n.TableFilter, n.TablePassThrough)
_PASS_ON = {
    "key": (*_SAME, n.MapValues, n.MapValuesBatch, n.MapValuesAsync, n.FlatMapValues, n.TableMapValues),
    "value": (*_SAME, n.SelectKey),
}


def explain_missing_serdes(graph: Graph, config: Config, node: str, record: Record, error: Exception) -> str:
    """Returns sentences that name the operators without a serde that may have caused an error; "" if there are none."""
    parts = [
        ("key", record.key, config.default_key_serde is None),
        ("value", record.value, config.default_value_serde is None),
    ]
    found = [_explain_part(graph, node, part, given, error) for part, given, has_no_default in parts if has_no_default]
    return "".join(f" {sentence}." for sentence in found if sentence)


def _explain_part(graph: Graph, name: str, part: str, given: Any, error: Exception) -> str:
    node = graph.nodes[name]
    if isinstance(node, Sink) and getattr(node, part) is None and given is not None and not isinstance(given, bytes):
        return _explain_sink(graph, node, part, given)
    if not isinstance(given, bytes) and "bytes" not in str(error):
        return ""
    sources = [some for some in map(graph.nodes.get, find_upstream(graph, name)) if isinstance(some, n.Source)]
    bare = sorted(
        source.name for source in sources
        if getattr(source, part) is None and graph.internal_topics.keys().isdisjoint(source.topics)
    )  # fmt: skip
    if not bare:
        return ""
    who = "it has" if len(bare) == 1 else "they have"
    return f"The {part}s of {' and '.join(bare)} are bytes, because {who} no {part}= serde"


def _explain_sink(graph: Graph, sink: Sink, part: str, given: Any) -> str:
    """Names the operator that makes the keys or values of a sink without a serde."""
    kind = type(given).__name__
    maker = graph.parents[sink.name][0]
    while isinstance(graph.nodes[maker], _PASS_ON[part]) and graph.parents[maker]:
        maker = graph.parents[maker][0]
    store = getattr(graph.nodes[maker], "store", None)
    if sink.topic in graph.internal_topics:
        where = f"{maker} makes {part}s of the type {kind} that go through the internal topic {sink.topic}"
        return f"{where}, and no {part}= serde is given: give one to the group_by, join or repartition below it"
    if part == "value" and isinstance(store, str) and graph.stores[store].value is None:
        return f"{maker} has no value= serde for its {kind}, nor has {sink.name}: give it one, and both have it"
    return f"{sink.name} has no {part}= serde for the {kind} that {maker} makes: to(…, {part}=…)"


def handlers_of(config: Config, *, for_globals: bool = False) -> Handlers:
    """The exception handlers of a task. For global stores, a setting decides whether the processing handler is used."""
    is_handled = not for_globals or config.processing_exception_handler_global_enabled
    return Handlers(
        config.deserialization_exception_handler,
        config.processing_exception_handler if is_handled else "fail",
        config.production_exception_handler,
        config.errors_dead_letter_queue_topic_name,
        config.log_record_values,
    )
