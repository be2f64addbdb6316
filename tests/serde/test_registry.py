"""Schemas with a real registry, which `headrace registry` starts; tests/serde/test_schemas.py has more, without one."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from headrace import Application, IncompatibleSchemaError, StreamsBuilder, serde
from headrace.checkpoint.storage import open_storage
from headrace.clients import Admin, Consumer, Producer
from headrace.config import Config
from headrace.errors import SchemaRegistryError
from headrace.query.follower import Follower, view_latest
from headrace.testing import TopologyTestDriver
from tests.serde.test_schemas import Line, Schema, bound, client, protobuf_class

pytestmark = pytest.mark.slow


def headrace(*arguments, text=None):
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("registry"))
    started = json.loads(headrace("registry", "start", "--directory", directory, "--json"))
    assert headrace("registry", "start", "--directory", directory).strip() == started["url"]
    yield started["url"]
    headrace("registry", "stop", "--directory", directory)
    with pytest.raises(AssertionError, match="no registry runs in"):
        headrace("registry", "stop", "--directory", directory)


NEWER = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "product", "type": "string"}, {"name": "price", "type": "double"}],
}


def test_an_incompatible_schema_stops_the_start_and_names_subject_version_and_field(registry):
    bound(serde.avro(Line), registry, "checked").register()
    builder = StreamsBuilder()
    builder.stream("in", value=serde.JSON).to("checked", value=serde.avro(schema=NEWER))
    with pytest.raises(IncompatibleSchemaError, match=r"version 1 of the subject 'checked-value': .*price") as caught:
        TopologyTestDriver(builder.build(), {"schema.registry.url": registry})
    assert (caught.value.subject, caught.value.version) == ("checked-value", 1)


def start_with(registry, topic, value):
    builder = StreamsBuilder()
    builder.stream("in", value=serde.JSON).to(topic, value=value)
    TopologyTestDriver(builder.build(), {"schema.registry.url": registry}).close()


def test_the_error_of_a_field_whose_type_changes_names_it(registry):
    bound(serde.avro(Line), registry, "retyped").register()
    retyped = {"type": "record", "name": "Line", "fields": [{"name": "product", "type": "long"}]}
    with pytest.raises(IncompatibleSchemaError, match=r"'retyped-value': .*LONG.*STRING.* \(product\)"):
        start_with(registry, "retyped", serde.avro(schema=retyped))
    strings, numbers = ({"type": "object", "properties": {"product": {"type": kind}}} for kind in ("string", "integer"))
    bound(serde.json_schema(schema=strings), registry, "json-retyped").register()
    with pytest.raises(IncompatibleSchemaError, match=r"'json-retyped-value': .*/properties/product"):
        start_with(registry, "json-retyped", serde.json_schema(schema=numbers))


def test_ids_in_headers_need_a_registry_with_guids_and_the_start_says_so(registry):
    with pytest.raises(SchemaRegistryError, match="the registry gives no GUIDs"):
        start_with(registry, "framed", serde.avro(Line, framing="headers"))


def test_all_formats_and_references(registry):
    client(registry).register_schema("line", Schema(json.dumps(serde.avro_schema(Line)), "AVRO"))
    cart = {"type": "record", "name": "Cart", "fields": [{"name": "line", "type": "Line"}]}
    avro = bound(serde.avro(schema=cart, references=[("Line", "line", 1)]), registry, "avro")
    value = {"line": {"product": "pen", "count": 1}}
    assert bound(serde.avro(), registry).decode(avro.encode(value)) == value
    objects = bound(serde.json_schema(Line), registry, "json")
    assert objects.decode(objects.encode(Line("pen"))) == Line("pen")
    kind = protobuf_class("Cart")
    messages = bound(serde.protobuf(kind), registry, "protobuf")
    raw = messages.encode(kind(line={"product": "pen"}))
    assert messages.decode(raw).line.product == "pen"
    assert bound(serde.protobuf(), registry).decode(raw) == {"line": {"product": "pen"}}


def test_produce_and_consume(registry, tmp_path):
    log = ("--log", f"file:{tmp_path}")
    url = ("--property", f"schema.registry.url={registry}")
    headrace("topics", "create", "--topic", "lines", *log)
    schema = ("--property", "value.schema=" + json.dumps(serde.avro_schema(Line)))
    value = ("--topic", "lines", "--value-format", "avro", *url)
    headrace("produce", *log, *value, *schema, text='{"product": "pen", "count": 2}\n')
    headrace("produce", *log, *value, text='{"product": "ink", "count": 3}\n')  # with the newest schema
    printed = headrace("consume", *log, *value, "--from-beginning", "--max-messages", "2", "--timeout-ms", "5000")
    assert printed == '{"product":"pen","count":2}\n{"product":"ink","count":3}\n'

    headrace("topics", "create", "--topic", "carts", *log)
    kind = protobuf_class("Cart")
    with Producer(log[1], value=serde.protobuf(kind), config={"schema.registry.url": registry}) as producer:
        producer.send("carts", b"k", kind(line={"product": "pen"}))
    value = ("--topic", "carts", "--value-format", "protobuf", *url)
    printed = headrace("consume", *log, *value, "--from-beginning", "--max-messages", "1", "--timeout-ms", "5000")
    assert printed == '{"line":{"product":"pen"}}\n'


@dataclass(frozen=True)
class Total:
    count: int = 0


@dataclass(frozen=True)
class PricedTotal:
    count: int = 0
    price: float = 1.5


def topology(kind):
    """Counts lines by product in a store of `kind`, which in Avro is called Total whatever the class."""
    total = serde.avro(kind, schema={**serde.avro_schema(kind), "name": "Total"})
    builder = StreamsBuilder()
    totals = (
        builder.stream("lines", value=serde.avro(Line))
        .group_by(lambda key, line: line.product, key=serde.STRING)
        .aggregate(kind, lambda key, line, old: kind(old.count + line.count), store="totals", value=total)
    )
    totals.to_stream().to("totals", key=serde.STRING, value=total)
    return builder.build()


def stored(topology, checkpoint, registry):
    """The value of a key in the store, as a query reads it."""
    config = Config.of({"application.id": "avro", "schema.registry.url": registry})
    follower = Follower(open_storage(checkpoint), topology.configured(config).graph(), config)
    return view_latest("totals", follower.refresh).get("pen").value


@pytest.mark.spark
def test_state_in_avro_goes_on_with_a_newer_type_on_spark(registry, tmp_path):
    log, checkpoint, config = f"file:{tmp_path}/log", f"{tmp_path}/checkpoint", {"schema.registry.url": registry}
    with Admin(log) as admin:
        admin.create_topic("lines")
    for kind, expected in ((Total, Total(2)), (PricedTotal, PricedTotal(4, 1.5))):
        with Producer(log, value=serde.avro(Line), config=config) as producer:
            producer.send("lines", b"k", Line("pen", 2))
        Application("avro", topology(kind), log=log, checkpoint=checkpoint, config=config).run_available()
        assert stored(topology(kind), checkpoint, registry) == expected
    with Consumer(log, value=serde.avro(), auto_offset_reset="earliest", config=config) as consumer:
        consumer.subscribe("totals")
        assert [record.value for record in consumer.poll(1000)] == [{"count": 2}, {"count": 4, "price": 1.5}]
