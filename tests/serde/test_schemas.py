"""Avro, Protobuf and JSON Schema with the client's registry inside the process; test_registry.py has a real one."""

import json
import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import schema_registry, serialization
from confluent_kafka.schema_registry import avro, json_schema, protobuf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.wrappers_pb2 import StringValue
from pydantic import BaseModel

from headrace import Stores, StreamsBuilder, TimeWindows, serde
from headrace.clients import Admin, Consumer, Producer
from headrace.errors import ConfigError, SchemaRegistryError, SerializationError
from headrace.query.json_values import to_json
from headrace.secrets import mask_settings
from headrace.serde.protocol import BoundSerde, SerdeContext, bind_serde
from headrace.serde.schema_registry import registry_of
from headrace.testing import TopologyTestDriver

# The client's types are incomplete.
Schema: Any = schema_registry.Schema
AvroDeserializer: Any = avro.AvroDeserializer
AvroSerializer: Any = avro.AvroSerializer
JSONDeserializer: Any = json_schema.JSONDeserializer
ProtobufDeserializer: Any = protobuf.ProtobufDeserializer
SerializationContext: Any = serialization.SerializationContext


class Size(Enum):
    S = "S"
    L = "L"


@dataclass(frozen=True)
class Line:
    product: str
    count: int = 1


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    size: Size
    lines: list[Line]
    shipped: date | None = None
    tags: dict[str, str] = field(default_factory=dict)
    first: Line | None = None
    raw: bytes = b""


class StructLine(msgspec.Struct):
    product: str
    count: int = 1


class ModelLine(BaseModel):
    product: str
    count: int = 1


ORDER = Order(
    UUID(int=7), datetime(2026, 1, 2, 3, 4, 5, 678, UTC), Size.L, [Line("pen", 2)], date(2026, 1, 3), {"a": "b"}
)


def protobuf_class(name):
    """A class of one of two files, of which the second imports the first."""
    pool = descriptor_pool.DescriptorPool()
    string = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    message = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    line = descriptor_pb2.FileDescriptorProto(name="line.proto", syntax="proto3")
    line.message_type.add(name="Line").field.add(name="product", number=1, type=string, label=1)
    cart = descriptor_pb2.FileDescriptorProto(name="cart.proto", syntax="proto3", dependency=["line.proto"])
    cart.message_type.add(name="Nothing")
    cart.message_type.add(name="Cart").field.add(name="line", number=1, type=message, type_name=".Line", label=1)
    for file in (line, cart):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def bound(wanted, url, topic="orders", part: Any = "value") -> BoundSerde:
    found = bind_serde(wanted, SerdeContext(topic, part, {"schema.registry.url": url}))
    assert isinstance(found, BoundSerde)
    return found


def client(url) -> Any:
    return registry_of(url, {}, "test").client


@pytest.mark.parametrize(
    "kind, value",
    [(Line, Line("pen", 2)), (StructLine, StructLine("pen", 2)), (ModelLine, ModelLine(product="pen", count=2))],
)
@pytest.mark.parametrize("make", [serde.avro, serde.json_schema])
def test_values_of_every_kind_of_type(make, kind, value):
    own = bound(make(kind), f"mock://{make.__name__}-{kind.__name__}")
    assert own.decode(own.encode(value)) == value
    assert bound(make(), f"mock://{make.__name__}-{kind.__name__}").decode(own.encode(value)) == {
        "product": "pen",
        "count": 2,
    }


def test_logical_and_nested_types_come_back():
    own = bound(serde.avro(Order), "mock://nested")
    assert own.decode(own.encode(ORDER)) == ORDER


def test_the_clients_own_serializers_read_what_is_written_and_write_what_is_read():
    url, context = "mock://client", SerializationContext("orders", "value")
    lines = bound(serde.avro(Line), url)
    conf = {"subject.name.strategy.type": "TOPIC"}
    assert AvroDeserializer(client(url), conf=conf)(lines.encode(Line("pen")), context) == {
        "product": "pen",
        "count": 1,
    }
    write = AvroSerializer(client(url), json.dumps(serde.avro_schema(Line)), conf=conf)
    assert lines.decode(write({"product": "ink", "count": 3}, context)) == Line("ink", 3)

    kind = protobuf_class("Cart")
    carts = bound(serde.protobuf(kind), url, "carts")
    read = ProtobufDeserializer(kind, conf, client(url))
    raw = carts.encode(kind(line={"product": "pen"}))
    assert read(raw, SerializationContext("carts", "value")).line.product == "pen"
    nested = bound(serde.protobuf(DescriptorProto.ExtensionRange), url, "ranges")
    assert nested.decode(nested.encode(DescriptorProto.ExtensionRange(start=1, end=5))).end == 5

    objects = bound(serde.json_schema(Line), url, "objects")
    read = JSONDeserializer(None, schema_registry_client=client(url), conf=conf)
    assert read(objects.encode(Line("pen")), SerializationContext("objects", "value"))["product"] == "pen"


def test_subjects_by_topic_by_record_and_by_both():
    url = "mock://subjects"
    for strategy in ("topic", "record", "topic-record"):
        bound(serde.avro(Line, subject=strategy), url).register()
    bound(serde.avro(Line), url, part="key").register()
    assert sorted(client(url).get_subjects()) == ["Line", "orders-Line", "orders-key", "orders-value"]


def test_the_default_strategy_asks_the_registry_once_for_a_subject():
    url = "mock://questions"
    asked = []
    real = client(url)
    for name in ("register_schema_full_response", "lookup_schema", "get_associations_by_resource_name"):
        function = getattr(real, name)
        setattr(real, name, lambda *a, f=function, n=name, **k: (asked.append(n), f(*a, **k))[1])
    lines = bound(serde.avro(Line), url)
    for _ in range(3):
        lines.encode(Line("pen"))
    assert asked == ["register_schema_full_response"]


def test_without_registration_the_schema_must_be_there():
    url = "mock://unregistered"
    with pytest.raises(SchemaRegistryError, match=r"no such schema for the subject 'orders-value'.*register=True"):
        bound(serde.avro(Line, register=False), url).encode(Line("pen"))
    bound(serde.avro(Line), url).register()
    assert bound(serde.avro(Line, register=False), url).encode(Line("pen"))


def test_a_serde_without_a_schema_writes_with_the_newest_of_the_subject():
    url = "mock://newest"
    bound(serde.avro(Line), url).register()
    plain = bound(serde.avro(), url)
    assert bound(serde.avro(Line), url).decode(plain.encode({"product": "pen", "count": 4})) == Line("pen", 4)


def test_records_of_an_older_schema_get_the_defaults_of_the_newer_one():
    url = "mock://older"
    old = {"type": "record", "name": "Line", "fields": [{"name": "product", "type": "string"}]}
    raw = bound(serde.avro(schema=old), url).encode({"product": "pen"})
    assert bound(serde.avro(Line), url).decode(raw) == Line("pen", 1)
    assert bound(serde.avro(schema=old, reader=serde.avro_schema(Line)), url).decode(raw) == {
        "product": "pen",
        "count": 1,
    }


def test_a_writer_with_a_namespace_is_read_by_a_type_without_one():
    url = "mock://namespace"
    named = serde.avro_schema(Line, namespace="com.shop")
    assert bound(serde.avro(Line), url).decode(
        bound(serde.avro(schema=named), url).encode({"product": "pen", "count": 2})
    ) == Line("pen", 2)


def test_references_to_other_schemas():
    url = "mock://references"
    client(url).register_schema("line", Schema(json.dumps(serde.avro_schema(Line)), "AVRO"))
    cart = {"type": "record", "name": "Cart", "fields": [{"name": "line", "type": "Line"}]}
    carts = bound(serde.avro(schema=cart, references=[("Line", "line", 1)]), url, "carts")
    raw = carts.encode({"line": {"product": "pen", "count": 1}})
    assert bound(serde.avro(), url, "carts").decode(raw) == {"line": {"product": "pen", "count": 1}}


def test_files_that_a_protobuf_file_imports_are_registered():
    url, kind = "mock://imports", protobuf_class("Cart")
    carts = bound(serde.protobuf(kind), url, "carts")
    assert carts.decode(carts.encode(kind(line={"product": "pen"}))).line.product == "pen"
    assert sorted(client(url).get_subjects()) == ["carts-value", "line.proto"]


@pytest.mark.parametrize(
    "make, kind, value",
    [
        (serde.avro, Line, Line("pencils")),
        (serde.json_schema, Line, Line("pen")),
        (serde.protobuf, StringValue, StringValue(value="a")),
    ],
)
def test_ids_in_headers_are_written_on_request_and_always_read(make, kind, value):
    url = f"mock://headers-{make.__name__}"
    own = bound(make(kind, framing="headers"), url)
    assert own.encode_with_headers
    raw, headers = own.encode_with_headers(value, (("a", b"1"),))
    assert [name for name, _ in headers] == ["a", "__value_schema_id"]
    other = bound(make(kind), url)
    assert other.encode_with_headers is None
    assert other.decode_with_headers(raw, headers) == value
    assert other.decode_with_headers(own.encode(value), ()) == value
    conf = {"subject.name.strategy.type": "TOPIC"}
    if make is serde.avro:
        context = SerializationContext("orders", "value", list(headers))
        assert AvroDeserializer(client(url), conf=conf)(raw, context)["product"] == "pencils"


def test_a_topology_that_reads_ids_in_headers_and_writes_them_into_the_bytes():
    lines = serde.avro(Line)
    builder = StreamsBuilder()
    stream = builder.stream("in", value=serde.avro(Line))
    stream.select_key(lambda line: line.product).repartition(key=serde.STRING, value=lines).to("out", value=lines)
    with TopologyTestDriver(builder.build(), {"schema.registry.url": "mock://mixed"}) as driver:
        source = driver.input_topic("in", value=serde.avro(Line, framing="headers"))
        source.pipe(Line("pen"), headers=[("a", b"1")])
        record = driver.output_topic("out", key=serde.STRING, value=lines).read_record()
        assert (record.key, record.value, record.headers) == ("pen", Line("pen"), (("a", b"1"),))


def test_tables_windows_and_joins_in_avro_and_the_subjects_that_they_make():
    builder = StreamsBuilder()
    key, line = serde.avro(schema='"string"'), serde.avro(Line)
    lines = builder.stream("lines", key=key, value=line)
    lines.group_by_key().reduce(lambda a, b: Line(a.product, a.count + b.count), store="totals").to_stream().to(
        "totals", key=key, value=line
    )
    windows = lines.group_by_key().windowed_by(TimeWindows.of(10)).count()
    windows.to_stream().to("counts", key=serde.windowed(key, 10), value=serde.LONG)
    url = "mock://tables"
    with TopologyTestDriver(builder.build(), {"schema.registry.url": url}) as driver:
        driver.input_topic("lines", key=key, value=line).pipe_key_values([("a", Line("pen")), ("a", Line("pen", 2))])
        assert driver.output_topic("totals", key=key, value=line).read_table() == {"a": Line("pen", 3)}
        counts = driver.output_topic("counts", key=serde.windowed(key, 10), value=serde.LONG)
        assert [(at.key, count) for at, count in counts.read_key_values()] == [("a", 1), ("a", 2)]
        assert driver.store("totals").get("a").value == Line("pen", 3)
    assert {"totals-value", "totals-key", "test-totals-changelog-value", "counts-key"} <= set(
        client(url).get_subjects()
    )


def test_a_topic_that_is_chosen_for_each_record_has_a_subject_of_its_own():
    builder = StreamsBuilder()
    lines = serde.avro(Line)
    builder.stream("lines", value=lines).to(lambda key, line, context: line.product, value=lines)
    url = "mock://chosen"
    with TopologyTestDriver(builder.build(), {"schema.registry.url": url}) as driver:
        driver.input_topic("lines", value=lines).pipe_all([Line("pens"), Line("inks")])
        assert driver.output_topic("inks", value=lines).read_values() == [Line("inks")]
    assert set(client(url).get_subjects()) == {"lines-value", "pens-value", "inks-value"}


def test_a_store_of_a_processor():
    class Keep:
        def init(self, context):
            self.store = context.store("lines")

        def process(self, record):
            self.store.put(record.value.product, record.value)

    builder = StreamsBuilder()
    builder.add_store(Stores.key_value("lines", key=serde.STRING, value=serde.avro(Line)))
    builder.stream("in", value=serde.avro(Line)).process(Keep, "lines")
    with TopologyTestDriver(builder.build(), {"schema.registry.url": "mock://processor"}) as driver:
        driver.input_topic("in", value=serde.avro(Line)).pipe(Line("pen", 5))
        assert driver.store("lines").get("pen") == Line("pen", 5)


def test_producers_and_consumers(tmp_path):
    log, config = f"file:{tmp_path}", {"schema.registry.url": "mock://clients"}
    with Admin(log) as admin:
        admin.create_topic("lines")
    with Producer(log, value=serde.avro(Line, framing="headers"), config=config) as producer:
        producer.send("lines", b"k", Line("pen")).result()
        producer.send("lines", b"k", Line("ink"), value_serde=serde.avro(Line)).result()
    reader = Consumer(log, value=serde.avro(Line), auto_offset_reset="earliest", config=config, idle_timeout=0)
    with reader as consumer:
        consumer.subscribe("lines")
        assert [record.value for record in consumer.poll(1000)] == [Line("pen"), Line("ink")]


def test_serdes_travel_to_other_processes_and_are_equal_there():
    for made in (serde.avro(Line), serde.json_schema(Line), serde.protobuf(StringValue)):
        assert pickle.loads(pickle.dumps(made)) == made


def test_bytes_of_another_serde_are_a_deserialization_error_and_unknown_ids_too():
    lines = bound(serde.avro(Line), "mock://wrong")
    for raw in (b'{"product": "pen"}', b"", b"\0\0"):
        with pytest.raises(ValueError, match=r"avro.Line. found no id of a schema"):
            lines.decode(raw)
    with pytest.raises(ValueError, match=r"has no schema with the id 99; a mock:// registry knows"):
        lines.decode(b"\0\0\0\0\x63abc")


def test_values_that_do_not_fit_are_errors_of_the_record():
    builder = StreamsBuilder()
    lines = serde.avro(Line)
    builder.stream("in", value=serde.JSON).map_values(Line).to("out", value=lines)
    config = {"schema.registry.url": "mock://unfit", "production.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.input_topic("in", value=serde.JSON).pipe_all([7, "pen"])
        assert driver.output_topic("out", value=lines).read_values() == [Line("pen")]


def test_a_registry_that_is_away_stops_the_application_whatever_the_handlers_say():
    builder = StreamsBuilder()
    builder.stream("in", value=serde.STRING).map_values(Line).to(lambda k, v, c: "out", value=serde.avro(Line))
    config = {"schema.registry.url": "http://me:pw@127.0.0.1:1", "production.exception.handler": "continue"}
    config |= {"schema.registry.max.retries": 0}
    driver = TopologyTestDriver(builder.build(), config)
    with driver, pytest.raises(SchemaRegistryError, match=r"http://\*\*\*@127.0.0.1:1 cannot be reached"):
        driver.input_topic("in", value=serde.STRING).pipe("pen")


def test_dicts_are_checked_with_their_json_schema():
    schema = {"title": "Line", "type": "object", "properties": {"count": {"type": "integer"}}}
    checked = bound(serde.json_schema(schema=schema), "mock://checked")
    with pytest.raises(ValueError, match=r"json_schema.Line.: 'x' is not of type 'integer' at count"):
        checked.encode({"count": "x"})
    loose = bound(serde.json_schema(schema=schema, validate=False), "mock://checked")
    with pytest.raises(ValueError, match="is not of type"):
        checked.decode(loose.encode({"count": "x"}))


def test_errors_that_say_what_to_do():
    with pytest.raises(ConfigError, match=r"needs a schema registry: set schema.registry.url"):
        bind_serde(serde.avro(Line), SerdeContext("t", "value", {})).encode(Line("pen"))
    with pytest.raises(ValueError, match="needs a topic"):
        serde.avro(Line, registry="mock://alone").encode(Line("pen"))
    with pytest.raises(ValueError, match="subject='topics': give one of 'topic', 'record', 'topic-record'"):
        serde.avro(Line, subject="topics")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match="a class that protoc has generated"):
        serde.protobuf(Line)
    with pytest.raises(ValueError, match="this is no Avro schema"):
        bound(serde.avro(schema='{"type": "record"}'), "mock://bad").register()


def test_credentials_of_a_registry_are_masked():
    shown = mask_settings({"schema.registry.url": "http://me:pw@host", "schema.registry.basic.auth.user.info": "me:pw"})
    assert "pw" not in str(shown)


def test_the_producer_names_the_topic_of_a_value_that_cannot_be_encoded(tmp_path):
    with Admin(f"file:{tmp_path}") as admin:
        admin.create_topic("lines")
    config = {"schema.registry.url": "mock://producer"}
    problem = "the value of a record for 'lines' cannot be encoded"
    with Producer(f"file:{tmp_path}", value=serde.avro(Line), config=config) as producer:  # noqa: SIM117
        with pytest.raises(SerializationError, match=problem):
            producer.send("lines", b"k", Line(7))  # pyright: ignore[reportArgumentType]


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    def missing(module):
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr("headrace.extras.importlib.import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[schemas\]'"):
        bound(serde.avro(Line), "mock://no-extra").encode(Line("pen"))


def test_messages_and_types_are_json_in_queries():
    message = protobuf_class("Cart")(line={"product": "pen"})
    assert to_json({"a": message, "b": Line("pen")}) == {
        "a": {"line": {"product": "pen"}},
        "b": {"product": "pen", "count": 1},
    }
