"""Stateless paths, many records at a time: from a source over filters and maps to one sink.

If only these nodes lie between a source and its only sink, records need not pass them one by one: each node takes a
column of values, in the order of the records. That saves a few function calls for each node and record, which take
longer than a fast serde. `find_path` returns None for other paths.

If a column raises an error, the relay writes nothing and the task takes the records of the batch one by one, so that
the exception handlers get the record that failed. Functions are then called again for records that they have seen.

`find_sink` tells which tables may write their updates to a sink at once (`tables.Cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.runtime.environment import SLICE, Env
from headrace.runtime.failures import Failures
from headrace.runtime.operators.source_sink import Outlet, header_decoder, writes_headers
from headrace.runtime.rows import Output, PartitionBatch
from headrace.serde.protocol import Serde, decode_column, depends_on_topic, encode_column
from headrace.topology.graph import Graph
from headrace.topology.nodes import (
    OF_VALUE,
    Filter,
    MapValues,
    PassThrough,
    ResponseOf,
    SelectKey,
    Sink,
    Source,
    TablePassThrough,
    TableToStream,
)

FEWEST = 8  # records; a smaller batch gains nothing


class Column(NamedTuple):
    """Some records of a partition batch, decoded. `places` are their indexes in the batch."""

    keys: Sequence[Any]
    values: Sequence[Any]
    places: Sequence[int]


SerdePair = tuple[Serde, Serde]  # of keys and values
Stage = Callable[[Column, PartitionBatch], Column]
Relay = Callable[[PartitionBatch], bool]


def find_path(graph: Graph, source: Source) -> tuple[list[Filter | MapValues | SelectKey], Sink] | None:
    """The stages between a source and its only sink, and the sink; None if other nodes lie there, or the path forks."""
    stages: list[Filter | MapValues | SelectKey] = []
    name = source.name
    while len(graph.children[name]) == 1:
        (name,) = graph.children[name]
        match graph.nodes[name]:
            case Sink() as sink:
                return stages, sink
            case Filter() | MapValues() | SelectKey() as stage:
                stages.append(stage)
            case PassThrough():
                pass
            case _:
                return None
    return None


def find_sink(graph: Graph, name: str) -> Sink | None:
    """The only sink below a table, if only `to_stream` lies between."""
    is_stream = False
    while len(graph.children[name]) == 1:
        (name,) = graph.children[name]
        match graph.nodes[name]:
            case Sink() as sink:
                return sink if is_stream else None
            case TableToStream():
                is_stream = True
            case TablePassThrough() | PassThrough():
                pass
            case _:
                return None
    return None


def can_end_at(sink: Sink, serdes: SerdePair) -> bool:
    """False if functions choose the topic or the partition, or if ids of schemas go into headers."""
    is_chosen = not isinstance(sink.topic, str) or sink.partitioner is not None or isinstance(sink.value, ResponseOf)
    return not is_chosen and not any(map(writes_headers, serdes))


def compile_relay(
    source: Source,
    sink: Sink,
    stages: Sequence[Filter | MapValues | SelectKey],
    serdes: tuple[SerdePair, SerdePair],
    outlet: Outlet,
    env: Env,
    failures: Failures,
    *,
    internal: bool,
) -> Relay:
    """The function that takes a partition batch from its source to its sink; it returns False if it has done nothing.

    `serdes` are those of the source and of the sink. `internal`: the source is a topic of the application's own.
    """
    read, write = _reader(source, serdes[0], failures), _writer(sink, stages, serdes, outlet, failures)
    steps = [_stage(stage, failures) for stage in stages]
    has_ids = not internal and header_decoder(*serdes[0]) is not None  # headers may have schema ids
    has_ids = has_ids or any(map(depends_on_topic, serdes[1]))

    def convert(batch: PartitionBatch) -> list[Output]:
        outputs: list[Output] = []
        for start in range(0, len(batch), SLICE):
            column = read(batch, start, start + SLICE)
            for step in steps:
                column = step(column, batch)
            outputs += write(column, batch)
        return outputs

    guarded, here = failures.guard_columns(source.name, convert), env.here

    def run(batch: PartitionBatch) -> bool:
        records = batch.records
        if len(batch) < FEWEST or min(records.timestamps) < 0 or (has_ids and records.headers is not None):
            return False
        outputs = guarded(batch)
        if outputs is None:
            return False
        outlet.outbox.extend(outputs)
        last = here.row = batch.row(len(batch) - 1)
        here.order, here.stream_time = last[7], max(here.stream_time, batch.largest[-1])
        return True

    return run


def _reader(source: Source, serdes: SerdePair, failures: Failures) -> Callable[[PartitionBatch, int, int], Column]:
    (key, value), enter, name = serdes, failures.enter_column, source.name

    def read(batch: PartitionBatch, start: int, end: int) -> Column:
        records, places = batch.records.slice(start, end), range(start, min(end, len(batch)))
        keys = decode_column(key, records.keys, enter(name, records.keys, batch, places))
        return Column(keys, decode_column(value, records.values, enter(name, records.values, batch, places)), places)

    return read


def _stage(node: Filter | MapValues | SelectKey, failures: Failures) -> Stage:
    name, enter = node.name, failures.enter_column

    def call(function: Callable[..., Any], column: Column, batch: PartitionBatch) -> list[Any]:
        values = enter(name, column.values, batch, column.places)
        of_value = getattr(function, OF_VALUE, None)
        return list(map(function, column.keys, values) if of_value is None else map(of_value, values))

    match node:
        case Filter(keep=keep, negate=negate):

            def filter_column(column: Column, batch: PartitionBatch) -> Column:
                kept = call(keep, column, batch)
                if negate:
                    kept = [not found for found in kept]
                return Column(*(list(compress(part, kept)) for part in column))

            return filter_column
        case MapValues(change=change):
            return lambda column, batch: column._replace(values=call(change, column, batch))
        case SelectKey(select=select):
            return lambda column, batch: column._replace(keys=call(select, column, batch))


def _writer(
    sink: Sink,
    stages: Sequence[Filter | MapValues | SelectKey],
    serdes: tuple[SerdePair, SerdePair],
    outlet: Outlet,
    failures: Failures,
) -> Callable[[Column, PartitionBatch], Iterable[Output]]:
    """Encodes a column. Bytes that no stage and no serde can change are not encoded again."""
    (read_key, read_value), (key, value) = serdes
    keeps_keys = key.exact and key == read_key and not any(isinstance(stage, SelectKey) for stage in stages)
    keeps_values = value.exact and value == read_value and not any(isinstance(stage, MapValues) for stage in stages)
    enter, name = failures.enter_column, sink.name
    topic = outlet.topic_name(str(sink.topic))
    partition = None if sink.target is None else outlet.own_partition

    def write(column: Column, batch: PartitionBatch) -> Iterable[Output]:
        (keys, values, places), records = column, batch.records
        pick = _picker(places)
        raw_keys = pick(records.keys) if keeps_keys else encode_column(key, keys, enter(name, keys, batch, places))
        raw_values = (
            pick(records.values) if keeps_values else encode_column(value, values, enter(name, values, batch, places))
        )
        headers = repeat(()) if records.headers is None else pick(records.headers)
        orders = batch.orders_at(places)
        return zip(repeat(topic), repeat(partition), raw_keys, raw_values, pick(records.timestamps), headers, orders)

    return write


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The function that picks the items at `places`. `itemgetter` takes a third of the time, but needs two places."""
    return itemgetter(*places) if len(places) > 1 else lambda parts: [parts[place] for place in places]
