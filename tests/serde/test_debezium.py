"""Debezium's envelope: changes of a database's rows become a table."""

import json
import pickle
from dataclasses import dataclass

import pytest

from headrace import Materialized, StreamsBuilder, serde
from headrace.errors import StreamsError
from headrace.serde.protocol import SerdeContext, bind_serde
from headrace.testing import TopologyTestDriver

SOURCE = {"version": "3.0.0.Final", "connector": "postgresql", "name": "db", "schema": "public", "table": "customers"}
ADA, ADA_BYRON = {"id": 1, "name": "Ada"}, {"id": 1, "name": "Ada Byron"}
BOB = {"id": 2, "name": "Bob"}
TOPIC = "db.public.customers"


@dataclass(frozen=True)
class Customer:
    id: int
    name: str


def plain(content):
    return json.dumps(content).encode()


def wrapped(content):
    """As Connect's JSON converter writes while schemas are enabled."""
    return plain({"schema": {"type": "struct", "fields": [], "optional": False}, "payload": content})


def change(op, before=None, after=None):
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 5, "transaction": None}


both_forms = pytest.mark.parametrize("form", [plain, wrapped])


# ------------------------------------------------------------------------------------------------------------- a table
@both_forms
def test_a_topic_of_changes_is_a_table(form):
    builder = StreamsBuilder()
    customers = builder.table(TOPIC, key=serde.debezium_key("id"), value=serde.debezium(Customer), store="customers")
    customers.to_stream().map_values(lambda customer: customer and customer.name).to(
        "names", key=serde.LONG, value=serde.STRING
    )
    with TopologyTestDriver(builder.build()) as driver:
        changes = driver.input_topic(TOPIC)
        changes.pipe(form({"id": 2}), form(change("r", after=BOB)), timestamp=0)
        changes.pipe(form({"id": 1}), form(change("c", after=ADA)), timestamp=1)
        changes.pipe(form({"id": 1}), form(change("u", ADA, ADA_BYRON)), timestamp=2)
        assert [(key, row.value) for key, row in driver.store("customers").all()] == [
            (1, Customer(1, "Ada Byron")),
            (2, Customer(2, "Bob")),
        ]
        changes.pipe(form({"id": 1}), form(change("d", ADA_BYRON)), timestamp=3)
        assert driver.store("customers").get(1) is None
        changes.pipe(form({"id": 1}), None, timestamp=4)  # it follows every delete, and changes nothing
        changes.pipe(form({"id": 2}), None, timestamp=5)
        assert list(driver.store("customers").all()) == []
        assert driver.output_topic("names", serde.LONG, serde.STRING).read_key_values() == [
            (2, "Bob"), (1, "Ada"), (1, "Ada Byron"), (1, None), (2, None),
        ]  # fmt: skip


def test_rows_that_are_deleted_leave_aggregates_and_joins():
    builder = StreamsBuilder()
    customers = builder.table(TOPIC, key=serde.debezium_key("id"), value=serde.debezium())
    customers.group_by(lambda row: (row["city"], row), key=serde.STRING, value=serde.JSON).count(store="by-city")
    orders = builder.stream("orders", key=serde.debezium_key("id"), value=serde.STRING)
    orders.join(customers, lambda order, row: f"{order} to {row['city']}").to("sent", value=serde.STRING)
    with TopologyTestDriver(builder.build()) as driver:
        changes = driver.input_topic(TOPIC, serde.debezium_key("id"), serde.debezium(envelope=True))
        orders, sent = driver.input_topic("orders", serde.debezium_key("id"), serde.STRING), driver.output_topic("sent")
        paris, rome = {"id": 1, "city": "Paris"}, {"id": 1, "city": "Rome"}
        for op, before, after, left in (
            ("c", None, paris, {"Paris": 1}),
            ("u", paris, rome, {"Paris": 0, "Rome": 1}),
            ("d", rome, None, {"Paris": 0, "Rome": 0}),
        ):
            changes.pipe(1, serde.RowChange(op, before, after), timestamp=0)
            orders.pipe(1, op, timestamp=0)
            assert {key: count.value for key, count in driver.store("by-city").all()} == left
        assert [value for _, value in sent.read_key_values()] == [b"c to Paris", b"u to Rome"]


TABLES = {
    "global": lambda builder, **serdes: builder.global_table(TOPIC, store="customers", **serdes),
    "uncached": lambda builder, **serdes: builder.table(
        TOPIC, store=Materialized("customers", caching=False), **serdes
    ),
    "versioned": lambda builder, **serdes: builder.table(TOPIC, store=Materialized("customers", history=9), **serdes),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_every_kind_lose_what_is_deleted(kind):
    builder = StreamsBuilder()
    TABLES[kind](builder, key=serde.debezium_key("id"), value=serde.debezium())
    with TopologyTestDriver(builder.build()) as driver:
        changes, customers = driver.input_topic(TOPIC), driver.store("customers")
        changes.pipe(wrapped({"id": 1}), wrapped(change("c", after=ADA)), timestamp=1)
        assert customers.get(1).value == ADA
        changes.pipe(wrapped({"id": 1}), wrapped(change("d", ADA)), timestamp=2)
        assert customers.get(1) is None


def test_a_truncate_has_no_key_and_is_counted_as_dropped():
    builder = StreamsBuilder()
    builder.table(TOPIC, key=serde.debezium_key("id"), value=serde.debezium(), store="customers")
    with TopologyTestDriver(builder.build()) as driver:
        changes = driver.input_topic(TOPIC)
        changes.pipe(plain({"id": 1}), plain(change("c", after=ADA)), timestamp=0)
        changes.pipe(None, plain(change("t")), timestamp=1)
        assert driver.store("customers").get(1).value == ADA
        assert driver.metrics()["dropped-records-total"] == 1


def test_the_application_stops_at_what_is_not_a_change():
    builder = StreamsBuilder()
    builder.table(TOPIC, key=serde.debezium_key("id"), value=serde.debezium(), store="customers")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError) as caught:
        driver.input_topic(TOPIC).pipe(plain({"id": 1}), plain(ADA), timestamp=0)
    assert "found no `op`" in str(caught.value.__cause__)


# ----------------------------------------------------------------------------------------------------- rows and changes
@both_forms
@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_value_is_the_row_after_the_change(form, op):
    assert serde.debezium().decode(form(change(op, ADA, ADA_BYRON))) == ADA_BYRON
    assert serde.debezium(Customer).decode(form(change(op, ADA, ADA_BYRON))) == Customer(**ADA_BYRON)


@both_forms
@pytest.mark.parametrize("content", [change("d", ADA), {"before": ADA, "op": "d"}, change("t"), None])
def test_what_leaves_no_row_is_none(form, content):
    assert serde.debezium().decode(form(content)) is None


@both_forms
def test_the_whole_change_can_be_had(form):
    whole = serde.debezium(Customer, envelope=True)
    update = serde.RowChange("u", Customer(**ADA), Customer(**ADA_BYRON), SOURCE, 5)
    delete = serde.RowChange("d", Customer(**ADA), None, SOURCE, 5)
    assert whole.decode(form(change("u", ADA, ADA_BYRON))) == update
    assert whole.decode(form(change("d", ADA))) == delete
    assert whole.decode(form(change("t"))) == serde.RowChange("t", source=SOURCE, ts_ms=5)
    assert whole.decode(form(None)) is None
    assert whole.decode(whole.encode(update)) == update
    assert json.loads(whole.encode(delete)) == change("d", ADA)


def test_a_row_is_written_in_an_envelope():
    written = serde.debezium(Customer).encode(Customer(**ADA))
    assert json.loads(written) == {"before": None, "after": ADA, "op": "c"}
    assert serde.debezium().decode(serde.debezium().encode(ADA)) == ADA
    assert serde.debezium(envelope=True).decode(written) == serde.RowChange("c", None, ADA)


def test_a_row_with_columns_called_payload_or_op_is_a_row():
    row = {"payload": {"op": "x"}, "op": "y", "schema": None}
    assert serde.debezium().decode(plain(change("c", after=row))) == row
    assert serde.debezium().decode(wrapped(change("c", after=row))) == row


def test_serdes_of_the_same_arguments_are_equal_in_another_process():
    for made in (
        serde.debezium(),
        serde.debezium(Customer),
        serde.debezium(Customer, envelope=True),
        serde.debezium_key("id", "line"),
    ):
        assert pickle.loads(pickle.dumps(made)) == made
    assert serde.debezium(Customer) != serde.debezium(Customer, envelope=True)
    assert repr(serde.debezium(Customer, envelope=True)) == "<serde debezium(Customer, envelope=True)>"
    assert (serde.debezium(Customer).immutable, serde.debezium().immutable) == (True, False)


# --------------------------------------------------------------------------------------------------------------- keys
@both_forms
def test_a_key_is_the_value_of_its_column_or_a_tuple(form):
    assert serde.debezium_key("id").decode(form({"id": 1})) == 1
    assert serde.debezium_key("line", "order").decode(form({"order": "a", "line": 1})) == (1, "a")
    assert serde.debezium_key("payload").decode(form({"payload": 1})) == 1
    assert serde.debezium_key("id").decode(form(None)) is None


def test_a_key_is_written_as_debezium_writes_it_without_schemas():
    assert serde.debezium_key("id").encode(1) == b'{"id":1}'
    assert serde.debezium_key("order", "line").encode(("a", 1)) == b'{"order":"a","line":1}'


# ------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    "raw, said",
    [
        (b"{", r"debezium\(Customer\) cannot read b'{': .*truncated"),
        (b"[1]", "cannot read .*Expected `object"),
        (plain(ADA), "found no `op`.*json_of"),
        (wrapped(ADA), "found no `op`"),
        (plain(change("x", after=ADA)), r"knows no op 'x'; there are c \(create\), "),
        (plain(change("u", ADA)), "op 'u' without `after`"),
        (plain(change("c", after={"id": "one", "name": "Ada"})), r"Expected `int`, got `str` - at `\$.id`"),
    ],
)
def test_an_error_names_what_is_wrong_with_a_value(raw, said):
    with pytest.raises(ValueError, match=said):
        serde.debezium(Customer).decode(raw)


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"1", r"debezium_key\('id'\) needs an object"),
        (b"{", "cannot read"),
        (b'{"ID":1}', "found a key of the columns 'ID'"),
        (b'{"id":1,"line":2}', "found a key of the columns 'id', 'line'"),
    ],
)
def test_an_error_names_what_is_wrong_with_a_key(raw, said):
    with pytest.raises(ValueError, match=said):
        serde.debezium_key("id").decode(raw)


def test_what_cannot_be_written_is_refused():
    with pytest.raises(TypeError, match="encodes a RowChange, not"):
        serde.debezium(envelope=True).encode(ADA)
    with pytest.raises(ValueError, match="knows no op 'create'"):
        serde.debezium(envelope=True).encode(serde.RowChange("create", None, ADA))
    with pytest.raises(TypeError, match=r"debezium_key\('a', 'b'\) encodes a tuple of 2 values, not 1"):
        serde.debezium_key("a", "b").encode(1)
    with pytest.raises(TypeError, match="needs the names of the columns"):
        serde.debezium_key()


CUSTOMER_SCHEMA = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
ENVELOPE_SCHEMA = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", CUSTOMER_SCHEMA], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


@dataclass(frozen=True)
class Person:
    id: int
    name: str


def test_changes_in_avro_make_a_table_with_the_same_serdes():
    builder = StreamsBuilder()
    builder.table("db.people", key=serde.debezium_key("id"), value=serde.debezium(Person), store="people")
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    with TopologyTestDriver(builder.build(), {"schema.registry.url": "mock://debezium"}) as driver:
        changes = driver.input_topic("db.people", key=serde.avro(schema=key), value=serde.avro(schema=ENVELOPE_SCHEMA))
        ada = {"id": 1, "name": "Ada"}
        changes.pipe({"id": 1}, {"before": None, "after": ada, "op": "c", "ts_ms": 5}, timestamp=5)
        assert driver.store("people").get(1).value == Person(1, "Ada")
        changes.pipe({"id": 1}, {"before": ada, "after": None, "op": "d", "ts_ms": 6}, timestamp=6)
        assert driver.store("people").get(1) is None


def test_the_whole_change_in_avro():
    url = {"schema.registry.url": "mock://envelope"}
    writer = bind_serde(serde.avro(schema=ENVELOPE_SCHEMA), SerdeContext("db.people", "value", url))
    reader = bind_serde(serde.debezium(envelope=True), SerdeContext("db.people", "value", url))
    raw = writer.encode({"before": {"id": 1, "name": "Ada"}, "after": None, "op": "d", "ts_ms": 6})
    assert reader.decode(raw) == serde.RowChange("d", {"id": 1, "name": "Ada"}, None, None, 6)


def test_rows_of_mongodb_are_texts():
    raw = rb'{"before": null, "after": "{\"id\": 1, \"name\": \"Ada\"}", "op": "c", "ts_ms": 5}'
    assert serde.debezium(Person).decode(raw) == Person(1, "Ada")
    assert serde.debezium(envelope=True).decode(raw).after == {"id": 1, "name": "Ada"}


@dataclass(frozen=True)
class Cart:
    owner: Person
    tags: list[str]
    prices: dict[str, float]
    note: str | None = None


def test_rows_of_connects_json_converter_have_the_schema_of_their_type():
    carts = serde.connect_json(Cart)
    cart = Cart(Person(1, "Ada"), ["new"], {"pen": 1.5})
    written = json.loads(carts.encode(cart))
    assert [(f["field"], f["type"], f["optional"]) for f in written["schema"]["fields"]] == [
        ("owner", "struct", False),
        ("tags", "array", False),
        ("prices", "map", False),
        ("note", "string", True),
    ]
    assert carts.decode(carts.encode(cart)) == cart
    assert serde.connect_json().decode(carts.encode(cart))["owner"] == {"id": 1, "name": "Ada"}
    assert json.loads(serde.connect_json().encode({"a": 1})) == {"schema": None, "payload": {"a": 1}}
    assert serde.connect_json().decode(b'{"schema": null, "payload": null}') is None
    assert serde.connect_json(Person).decode(b'{"id": 1, "name": "Ada"}') == Person(1, "Ada")
    assert pickle.loads(pickle.dumps(carts)) == carts
    with pytest.raises(ValueError, match=r"connect_json\(Cart\) cannot read"):
        carts.decode(b"x")
