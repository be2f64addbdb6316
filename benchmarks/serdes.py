"""What do schemas cost? Records per second through a filter in JSON, Avro and Protobuf, beside the bare libraries.

    python -m benchmarks.serdes [--records 50000] [--json]

Each serde decodes, filters and encodes the same records in a task, as on Spark; beside it a loop does the same with the
library alone (orjson, msgspec, fastavro, protobuf), and a loop with confluent-kafka's own serializers, which other
programs use. The registry is inside the process: after the first record, no side asks it. Seconds are those of the CPU.
The goal is 0.6 of the library's speed.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import fastavro
import msgspec
import orjson
from confluent_kafka import serialization
from confluent_kafka.schema_registry import avro as avro_client
from confluent_kafka.schema_registry import protobuf as protobuf_client
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headrace import StreamsBuilder, serde
from headrace.config import Config
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.serde.protocol import SerdeContext, bind_serde
from headrace.serde.schema_registry import registry_of
from headrace.state.engine import MemoryEngine, Version

URL, BATCH, ROUNDS = "mock://benchmark", 10_000, 3
CONTEXT: Any = serialization.SerializationContext("in", serialization.MessageField.VALUE)
CONF = {"subject.name.strategy.type": "TOPIC"}


class Order(msgspec.Struct):
    id: int
    product: str
    quantity: int
    price: float
    note: str | None = None


def protobuf_class() -> Any:
    """The class that protoc would generate for Order."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    fields = [("id", kinds.TYPE_INT64), ("product", kinds.TYPE_STRING), ("quantity", kinds.TYPE_INT64)]
    fields += [("price", kinds.TYPE_DOUBLE), ("note", kinds.TYPE_STRING)]
    for number, (name, kind) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


Message = protobuf_class()
SCHEMA = fastavro.parse_schema(serde.avro_schema(Order))


class Case(NamedTuple):
    """A serde, its values, and the same bytes by the bare library and by the client's serializers."""

    name: str
    serde: serde.Serde[Any]
    make: Callable[..., Any]
    keep: Callable[[Any], bool]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    client: Callable[[], tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] | None = None


def read_avro(raw: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(raw[5:]), SCHEMA, None)


def write_avro(value: Any) -> bytes:
    out = io.BytesIO()
    out.write(b"\0\0\0\0\1")
    fastavro.schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


def read_typed_avro(raw: bytes) -> Any:
    return msgspec.convert(read_avro(raw), Order)


def write_typed_avro(value: Any) -> bytes:
    return write_avro(msgspec.to_builtins(value))


def avro_of_client() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    registry = registry_of(URL, {}, "benchmark").client
    serializer: Any = avro_client.AvroSerializer
    deserializer: Any = avro_client.AvroDeserializer
    read, write = (
        deserializer(registry, conf=CONF),
        serializer(registry, json.dumps(serde.avro_schema(Order)), conf=CONF),
    )
    return lambda raw: read(raw, CONTEXT), lambda value: write(value, CONTEXT)


def protobuf_of_client() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    registry = registry_of(URL, {}, "benchmark").client
    serializer: Any = protobuf_client.ProtobufSerializer
    deserializer: Any = protobuf_client.ProtobufDeserializer
    read, write = deserializer(Message, CONF, registry), serializer(Message, registry, conf=CONF)
    return lambda raw: read(raw, CONTEXT), lambda value: write(value, CONTEXT)


def large(order: Any) -> bool:
    return order.quantity > 4


def large_dict(order: Any) -> bool:
    return order["quantity"] > 4


def write_protobuf(value: Any) -> bytes:
    return b"\0\0\0\0\1\0" + value.SerializeToString()


read_json = msgspec.json.Decoder(Order).decode
write_json = msgspec.json.Encoder().encode
CASES = [
    Case("JSON, dicts", serde.JSON, dict, large_dict, orjson.loads, orjson.dumps),
    Case("JSON, typed", serde.json_of(Order), Order, large, read_json, write_json),
    Case(
        "Avro, dicts", serde.avro(schema=serde.avro_schema(Order)), dict, large_dict, read_avro, write_avro,
        avro_of_client,
    ),
    Case("Avro, typed", serde.avro(Order), Order, large, read_typed_avro, write_typed_avro),
    Case(
        "Protobuf", serde.protobuf(Message), Message, large, lambda raw: Message.FromString(raw[6:]), write_protobuf,
        protobuf_of_client,
    ),
]  # fmt: skip


def make_batches(case: Case, encode: Callable[[Any], bytes], count: int) -> list[PartitionBatch]:
    fields = [
        {"id": n, "product": f"p{n % 500}", "quantity": n % 10, "price": n / 7, "note": "-"} for n in range(BATCH)
    ]
    values = [encode(case.make(**row)) for row in fields]
    records = Records([b"k"] * BATCH, values, range(BATCH))
    return [PartitionBatch(TopicPartition("in", 0), range(BATCH), records) for _ in range(count // BATCH)]


def run_task(case: Case, count: int) -> tuple[float, int]:
    """Seconds and outputs of a filter in a task."""
    builder = StreamsBuilder()
    builder.stream("in", key=serde.BYTES, value=case.serde).filter(case.keep).to("out", value=case.serde)
    graph = builder.build().graph()
    around = TaskEnvironment(Config.of({"application.id": "benchmark", "schema.registry.url": URL}), {})
    task = Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), around, clock=0)
    bound = bind_serde(case.serde, SerdeContext("in", "value", {"schema.registry.url": URL}))
    batches, outputs = make_batches(case, bound.encode, count), 0
    begin = time.process_time()
    for number, batch in enumerate(batches):
        inputs = Inputs({batch.at: Input([batch], BATCH)})
        outputs += len(task.run(inputs, clock=0, version=Version(number + 1, "a")).outputs)
    return time.process_time() - begin, outputs


def run_loop(
    case: Case, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], count: int
) -> tuple[float, int]:
    """Seconds and outputs of the same filter in a loop."""
    batches, outputs, keep = make_batches(case, encode, count), 0, case.keep
    begin = time.process_time()
    for batch in batches:
        out = []
        for key, value, timestamp in zip(
            batch.records.keys, batch.records.values, batch.records.timestamps, strict=True
        ):
            order = decode(value or b"")
            if keep(order):
                out.append(("out", None, key, encode(order), timestamp, ()))
        outputs += len(out)
    return time.process_time() - begin, outputs


def measure(count: int, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """The best of several rounds, in which all sides take turns."""
    rows = []
    for case in track(CASES, "serdes", console=Console(stderr=True), transient=True):
        loops = [(case.decode, case.encode), *([case.client()] if case.client else [])]
        taken = [[run_task(case, count), *(run_loop(case, *loop, count) for loop in loops)] for _ in range(rounds)]
        if len({outputs for turn in taken for _, outputs in turn}) != 1:
            raise AssertionError(f"{case.name}: the sides do not agree: {taken[0]}")
        speeds = [count / min(seconds for seconds, _ in side) for side in zip(*taken, strict=True)]
        rows.append({
            "serde": case.name,
            "headrace": round(speeds[0]),
            "library": round(speeds[1]),
            "share": round(speeds[0] / speeds[1], 2),
            "client": round(speeds[2]) if len(speeds) > 2 else None,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(max(BATCH, options.records))
    if options.json:
        print(json.dumps(rows))
        return
    table = Table("serde", "Headrace, records/s", "bare library", "share (goal 0.6)", "confluent-kafka's serializers")
    for row in rows:
        client = "" if row["client"] is None else f"{row['client']:,}"
        table.add_row(row["serde"], f"{row['headrace']:,}", f"{row['library']:,}", f"{row['share']:.2f}", client)
    Console().print(table)


if __name__ == "__main__":
    main()
