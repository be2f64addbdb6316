"""From the statements of a case to a topology, with Headrace's public API."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import headrace as hr
from tests.oracle import functions as fn
from tests.oracle.aggregates import aggregate
from tests.oracle.language import STRING, BadCase, Case, Spec, Type, Types, text, types_of
from tests.oracle.processors import Transformer, processor, stores_of
from tests.oracle.verbs import Defined, aggregation, joins, record_by_record, windowed_by
from tests.oracle.windows import join_windows, store_of, suppressed


class Shape(NamedTuple):
    """How the rows of a store look (kv, window, session or versioned), and the type of its keys."""

    kind: str
    key: Type


def optimization(case: Case) -> Literal["all"] | None:
    return "all" if case.get("config", {}).get("optimization") == "all" else None


class Program:
    """The topology of a case, the types of its topics and the shapes of its stores.

    With a `builder` the operators of the case join those of other cases. Then `add_by_hand` completes the topology.
    """

    def __init__(self, case: Case, builder: hr.StreamsBuilder | None = None) -> None:
        self.sinks: dict[str, Types] = {}
        self.stores: dict[str, Shape] = {}
        self._sources: dict[str, Types] = {}
        self._patterns: dict[str, Types] = {}
        self._routes: list[tuple[Callable[[str], bool], Types]] = []  # topics that a router may choose
        self._defined: dict[str, Defined] = {}
        self._builder = builder or hr.StreamsBuilder()
        sentences = [s for s in case["topology"] if not s["op"].startswith("papi_")]
        for s in sentences:
            defined = self._sentence(s)
            if defined is not None:
                self._defined[s["id"]] = defined
        if builder is None:
            self.topology = self._builder.build(optimize=optimization(case)) if sentences else hr.Topology()
            self.add_by_hand(self.topology, case)

    def types_at(self, id_: str) -> Types:
        """The types of what a statement defines."""
        return self._defined[id_].types

    def types_of(self, topic: str) -> Types:
        """The types of a topic that is read."""
        matching = [types for pattern, types in self._patterns.items() if re.fullmatch(pattern, topic)]
        if topic not in self._sources and not matching:
            raise BadCase(f"no source reads {topic}")
        return self._sources.get(topic) or matching[0]

    def outputs(self, produced: Collection[str]) -> dict[str, Types]:
        """The topics that are written: of all sinks, and of routers those that have been produced to."""
        routed = {topic: types for may_choose, types in self._routes for topic in produced if may_choose(topic)}
        return self.sinks | routed

    # -------------------------------------------------------------------------------------------------- statements
    def add_by_hand(self, topology: hr.Topology, case: Case) -> None:
        """Adds what the case adds to a topology itself, not to a builder."""
        for s in case["topology"]:
            if s["op"].startswith("papi_"):
                self._add_by_hand(topology, s)

    def _add_by_hand(self, topology: hr.Topology, s: Spec) -> None:
        match s["op"]:
            case "papi_source":
                types = types_of(s)
                self._sources |= dict.fromkeys(s["topics"], types)
                extractor = fn.timestamp_extractor(s.get("extractor"))
                topology.add_source(s["name"], *s["topics"], timestamp=extractor, **types.serdes)
            case "papi_processor":
                _, supplier = processor(s["processor"], Types(STRING, STRING))
                topology.add_processor(s["name"], supplier, *s.get("parents", []))
            case "papi_store":
                topology.add_store(self._store(s), *s.get("processors", []))
            case "papi_connect":
                topology.connect(s["name"], *s["stores"])
            case "papi_sink":
                types = types_of(s)
                topology.add_sink(s["name"], self._target(s, types), *s.get("parents", []), **types.serdes)
            case op:
                raise BadCase(f"unknown operator {op}")

    def _sentence(self, s: Spec) -> Defined | None:  # noqa: PLR0911 - one match over all operators
        match s["op"]:
            case "stream" | "table" | "globalTable":
                return self._source(s)
            case "store":
                self._builder.add_store(self._store(s))
                return None
            case "globalStore":
                self._sources[s["topic"]] = types = types_of(s)
                _, supplier = processor({"fn": "fill", "store": s["store"]}, types)
                options = {"name": s.get("named"), **types.serdes}
                self._builder.add_global_store(self._store(s), s["topic"], supplier, **options)
                return None
            case "cogroup":
                return self._cogroup(s)
        subject = self._defined[s["from"]]
        match subject.kind, s["op"]:
            case "stream", "join" | "leftJoin" | "outerJoin":
                return self._join_stream(s, subject)
            case "stream", _:
                return self._on_stream(s, subject)
            case "table", "join" | "leftJoin" | "outerJoin":
                return self._join_table(s, subject)
            case "table", _:
                return self._on_table(s, subject)
            case _, "windowedBy":
                return windowed_by(s, subject)
            case _:
                return self._aggregate(s, subject)

    def _source(self, s: Spec) -> Defined:
        types = types_of(s)
        topics = s.get("topics") or ([s["topic"]] if "topic" in s else [])
        self._sources |= dict.fromkeys(topics, types)
        options: dict[str, Any] = {"name": s.get("named"), **types.serdes}
        if s["op"] == "globalTable":
            table = self._builder.global_table(s["topic"], store=self._materialized(s, types), **options)
            return Defined("global", table, types)
        options["timestamp"] = fn.timestamp_extractor(s.get("extractor"))
        if s["op"] == "table":
            table = self._builder.table(s["topic"], store=self._materialized(s, types), **options)
            return Defined("table", table, types)
        if "pattern" in s:
            self._patterns[s["pattern"]] = types
            options["pattern"] = re.compile(s["pattern"])
        return Defined("stream", self._builder.stream(*topics, **options), types)

    # ------------------------------------------------------------------------------------------------------ streams
    def _on_stream(self, s: Spec, subject: Defined) -> Defined | None:  # noqa: PLR0911 - one match over all operators
        stream, types, name = subject.it, subject.types, s.get("named")
        match s["op"]:
            case "foreach":
                stream.foreach(lambda key, value: None, name=name)
                return None
            case "split":
                self._split(s, subject)
                return None
            case "to":
                stream.to(self._target(s, types), name=name, **types.serdes)
                return None
            case "merge":
                return replace(subject, it=stream.merge(self._defined[s["other"]].it, name=name))
            case "repartition":
                again = stream.repartition(name=name, partitions=s.get("partitions"), **types.serdes)
                return replace(subject, it=again)
            case "toTable":
                table = stream.to_table(store=self._materialized(s, types, always=True), name=name)
                return Defined("table", table, types)
            case "groupByKey":
                return Defined("grouped", stream.group_by_key(name=name, **types.serdes), types)
            case "groupBy":
                key, select = fn.key_selector(s["key"], types)
                types = Types(key, types.value)
                return Defined("grouped", stream.group_by(select, name=name, **types.serdes), types)
            case _:
                return record_by_record(s, subject)

    def _split(self, s: Spec, subject: Defined) -> None:
        def define(branch: Spec) -> dict[str, Any]:
            def then(stream: hr.KStream) -> None:
                self._defined[branch["id"]] = replace(subject, it=stream)

            return {"name": branch.get("name"), "then": then}

        branched = subject.it.split(name=s.get("named"))
        for branch in s["branches"]:
            branched = branched.branch(fn.predicate(branch["pred"]), **define(branch))
        if "default" in s:
            branched.default_branch(**define(s["default"]))
        else:
            branched.no_default_branch()

    def _join_stream(self, s: Spec, subject: Defined) -> Defined:
        other, types = self._defined[s["other"]], subject.types
        value, joiner = fn.joiner(s["joiner"], types, other.types, with_key=True)
        options: dict[str, Any] = {"name": s.get("named")}
        match other.kind:
            case "stream":
                options |= {"windows": join_windows(s["windows"]), "store": s.get("store")}
                options |= {"other_value": other.types.value.serde, **types.serdes}
            case "table":
                options |= {"grace": s.get("grace_ms"), **types.serdes}
            case "global":
                options["on"] = fn.key_selector(s["key"], types)[1]
        return Defined("stream", joins(subject)[s["op"]](other.it, joiner, **options), Types(types.key, value))

    # ------------------------------------------------------------------------------------------------------- tables
    def _on_table(self, s: Spec, subject: Defined) -> Defined:
        table, types, name = subject.it, subject.types, s.get("named")
        match s["op"]:
            case "filter" | "filterNot":
                method = table.filter if s["op"] == "filter" else table.filter_not
                kept = method(fn.predicate(s["pred"]), store=self._materialized(s, types), name=name)
                return replace(subject, it=kept)
            case "mapValues":
                value, change = fn.value_mapper(s["value"], types)
                types = Types(types.key, value)
                return Defined("table", table.map_values(change, store=self._materialized(s, types), name=name), types)
            case "transformValues":
                types, spec = Types(types.key, STRING), s["transformer"]
                options = {"store": self._materialized(s, types), "name": name}
                table = table.transform_values(lambda: Transformer(spec), *stores_of(spec), **options)
                return Defined("table", table, types)
            case "toStream":
                key, select = fn.key_selector(s["key"], types) if "key" in s else (types.key, None)
                return Defined("stream", table.to_stream(select, name=name), Types(key, types.value))
            case "groupBy":
                types, change = fn.pair_mapper(s, types)
                return Defined("grouped table", table.group_by(change, name=name, **types.serdes), types)
            case "suppress":
                return replace(subject, it=table.suppress(suppressed(s), name=name))
        raise BadCase(f"unknown operator {s['op']} on a table")

    def _join_table(self, s: Spec, subject: Defined) -> Defined:
        other, foreign = self._defined[s["other"]], "fk" in s
        value, joiner = fn.joiner(s["joiner"], subject.types, other.types, with_key=False)
        types = Types(subject.types.key, value)
        options = {"store": self._materialized(s, types, always=foreign), "name": s.get("named")}
        if foreign:
            options["on"] = fn.foreign_key(s["fk"])
        return Defined("table", joins(subject)[s["op"]](other.it, joiner, **options), types)

    # --------------------------------------------------------------------------------------------------- aggregates
    def _cogroup(self, s: Spec) -> Defined:
        grouped = [self._defined[name] for name in s["from"]]
        parts = [aggregate(spec) for spec in s["aggs"]]
        cogrouped = grouped[0].it.cogroup(parts[0].add)
        for other, part in zip(grouped[1:], parts[1:], strict=True):
            cogrouped = cogrouped.cogroup(other.it, part.add)
        return Defined("cogrouped", cogrouped, Types(grouped[0].types.key, parts[0].type), first=parts[0])

    def _aggregate(self, s: Spec, subject: Defined) -> Defined:
        windowed, key = subject.windowed_key, subject.types.key
        kind = "kv" if windowed is None else "session" if windowed.name.startswith("session") else "window"
        method, value, arguments, options = aggregation(s, subject, merges=kind == "session")
        options["store"] = self._materialized(s, Types(key, value), always=True, kind=kind)
        return Defined("table", method(*arguments, name=s.get("named"), **options), Types(windowed or key, value))

    # ----------------------------------------------------------------------------------------- stores and targets
    def _materialized(self, s: Spec, types: Types, *, always: bool = False, kind: str = "kv") -> hr.Materialized | None:
        """The `store=` of an operator: None where neither the statement nor the operator asks for one."""
        name = s.get("store")
        if name is None and not always and not s.get("serdes"):
            return None
        if name is not None:
            self.stores[name] = Shape("versioned" if "versioned_ms" in s else kind, types.key)
        settings = {"retention": "retention_ms", "history": "versioned_ms", "caching": "caching"}
        given = {setting: s[field] for setting, field in settings.items() if field in s}
        return hr.Materialized(name=name, **given, **types.serdes)

    def _store(self, s: Spec) -> hr.StoreSpec:
        kind = s.get("kind", "kv")
        self.stores[s["store"]] = Shape(kind if kind in ("window", "session", "versioned") else "kv", types_of(s).key)
        return store_of(s)

    def _target(self, s: Spec, types: Types) -> str | Callable[..., str]:
        """Where a sink writes: a topic, or what the router chooses."""
        match s.get("router"):
            case None:
                self.sinks[s["topic"]] = types
                return s["topic"]
            case {"fn": "by_key", "prefix": prefix}:
                self._routes.append((lambda topic: topic.startswith(prefix), types))
                return lambda key, value, context: prefix + text(key)
            case {"fn": "by_pred", "pred": pred, "then": then, "else": otherwise}:
                holds = fn.predicate(pred)
                self._routes.append((lambda topic: topic in (then, otherwise), types))
                return lambda key, value, context: then if holds(key, value) else otherwise
        raise BadCase(f"unknown router {s['router']}")
