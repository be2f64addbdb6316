"""A dropped record can be traced: which operator left it out, where it was read, and why."""

from headrace import JoinWindows, StreamsBuilder, TimeWindows, serde
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest import decode_manifest
from headrace.checkpoint.manifest_builder import ManifestBuilder
from headrace.checkpoint.receipt import Receipt
from headrace.model.ids import TaskId
from headrace.query.drops import describe_drops
from headrace.runtime.environment import KEPT_DROPS, DroppedRecord
from headrace.testing import TopologyTestDriver


def test_the_driver_names_operator_offset_and_reason_of_every_dropped_record():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=serde.STRING, value=serde.STRING)
    clicks.group_by_key().windowed_by(TimeWindows.of(10)).count(name="by-window")
    clicks.join(clicks.map_values(str.upper), min, windows=JoinWindows.of(5), name="with-itself").to(
        "out", value=serde.STRING
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("clicks", key=serde.STRING, value=serde.STRING)
        topic.pipe("ada", "/", timestamp=100)
        topic.pipe("bob", "/", timestamp=3)
        topic.pipe(None, "/", timestamp=101)
        found = [(drop.reason, drop.topic, drop.offset, drop.key, drop.stream_time) for drop in driver.drops]
        operators = {drop.node for drop in driver.drops if drop.offset == 2}
    assert found[0] == ("late", "clicks", 1, b"bob", 100)
    assert {reason for reason, _, offset, *_ in found if offset == 2} == {"null key", "null key or value"}
    assert "by-window" in operators
    assert len(operators) > 1, "each operator that leaves the record out is named"


def test_a_record_that_is_dropped_behind_a_repartition_has_no_offset_of_the_log():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=serde.STRING, value=serde.STRING)
    clicks.group_by(lambda key, value: value, key=serde.STRING).windowed_by(TimeWindows.of(10)).count(store="by-page")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("clicks", key=serde.STRING, value=serde.STRING)
        topic.pipe("ada", "/", timestamp=100)
        topic.pipe("bob", "/", timestamp=3)
        (drop,) = driver.drops
    assert (drop.reason, drop.topic, drop.offset) == ("late", "test-by-page-repartition", -1)
    assert describe_drops([drop])[0]["offset"] is None


def test_a_failing_function_is_named():
    builder = StreamsBuilder()
    builder.stream("numbers", value=serde.STRING).map_values(int, name="parse").to("out", value=serde.LONG)
    config = {"processing.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.input_topic("numbers", value=serde.STRING).pipe("x", timestamp=7)
        (drop,) = driver.drops
    assert (drop.reason, drop.node, drop.timestamp) == ("processing error", "parse", 7)


def dropped(number: int, offset: int) -> DroppedRecord:
    return DroppedRecord("late", "count", "clicks", 0, offset, b"k", 1, 100, number)


def test_a_checkpoint_keeps_the_last_ones_of_each_reason():
    ledger = Ledger()
    for number in range(4):
        drops = tuple(dropped(number, offset) for offset in range(6 * number, 6 * number + 6)) if number != 2 else ()
        receipt = Receipt(
            task=TaskId(0, 0), level=0, number=number, attempt=f"a{number}", base=None, dropped={"late": len(drops)},
            drops=drops,
        )  # fmt: skip
        builder = ManifestBuilder(
            checkpoint="c", application="a", epoch=1, clock=number, delivered=-1, receipts=[receipt]
        )
        manifest, raw = builder.build(ledger, full_up_to=0)
        assert (manifest.drops == ()) == (number == 2)
        ledger.apply(*decode_manifest(raw, "m"))
    assert [drop.offset for drop in ledger.drops] == [8, 9, 10, 11, *range(18, 24)]
    assert len(ledger.drops) == KEPT_DROPS
    rows = describe_drops(ledger.drops)
    assert (rows[0]["clock"], rows[0]["key"], rows[0]["operator"]) == (3, "k", "count")
    assert "grace" in rows[0]["why"]
