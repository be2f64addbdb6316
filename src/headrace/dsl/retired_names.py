"""Names that Kafka Streams had once: whoever uses one is told today's way."""

from __future__ import annotations

from typing import NoReturn

STREAM = {
    "through": "repartition(name=…), or to(topic) and builder.stream(topic)",
    "branch": "split().branch(predicate, name=…).default_branch()",
    "transform": "process(supplier, *store_names)",
    "flat_transform": "process(supplier, *store_names)",
    "transform_values": "process_values(supplier, *store_names)",
    "flat_transform_values": "process_values(supplier, *store_names)",
    "count_by_key": "group_by_key().count()",
    "reduce_by_key": "group_by_key().reduce(f)",
    "aggregate_by_key": "group_by_key().aggregate(init, f)",
    "write_as_text": "print(to=open(path, 'w'))",
}
TABLE = {
    "to": "to_stream().to(topic)",
    "through": "to_stream().repartition(), or to_stream().to(topic) and builder.table(topic)",
    "foreach": "to_stream().foreach(f)",
    "print": "to_stream().print()",
    "write_as_text": "to_stream().print(to=open(path, 'w'))",
    "get_store_name": "queryable_store_name",
}
GROUPED = {"count_by_key": "count()", "windowed": "windowed_by(windows)"}
BUILDER = {"add_state_store": "add_store(spec)", "new_name": "name= of the operators", "merge": "stream.merge(other)"}


def refuse(owner: str, retired: dict[str, str], name: str) -> NoReturn:
    """For `__getattr__`: an attribute that is not there, with a hint if it once was."""
    hint = f" any more: use {retired[name]}" if name in retired else ""
    raise AttributeError(f"{owner} has no {name!r}{hint}", name=name)
