"""What users of Kafka Streams or of Python try: it works, or the error says what to write."""

import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import (
    Buffer,
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serde,
)
from tests.dsl.graphs import names

Wrong: Any = StreamsBuilder  # type checkers flag the mistakes of this file


@dataclass
class Order:
    amount: int


def wrong(given: Any) -> Any:
    return given


# ------------------------------------------------------------------------------------------------------- what works
def test_topics_can_be_given_as_a_list():
    builder = StreamsBuilder()
    builder.stream(["a", "b"], "c", name="all")
    assert builder.build().graph().nodes["all"].topics == ("a", "b", "c")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("optimize, same", [(True, "all"), (False, "none")])
def test_optimize_can_be_true_or_false(optimize, same):
    builder = StreamsBuilder()
    stream = builder.stream("t").select_key(lambda value: value)
    stream.group_by_key().count()
    stream.group_by_key().count()
    assert names(builder, optimize) == names(builder, same)
    assert (names(builder, True) == names(builder, False)) is False


def test_the_options_are_in_the_signature():
    options = ["windows", "grace", "on", "key", "value", "other_value", "store", "name"]
    assert list(inspect.signature(KStream.join).parameters) == ["self", "other", "joiner", *options]


def test_a_generic_class_can_be_called_with_its_types():
    assert Materialized[str, int]("counts") == Materialized("counts")


# ------------------------------------------------------------------------------------------------------------ serdes
@pytest.mark.parametrize(
    "given, hint",
    [
        (str, "serde.STRING"),
        (int, "serde.LONG"),
        (Order, "serde.json_of(Order)"),
        ("string", "serde.STRING"),
        ("str", "serde.STRING"),
        ("LongSerde", "serde.LONG"),
        ("org.apache.kafka.common.serialization.Serdes$UUIDSerde", "serde.UUID"),
        ("text", "one of headrace.serde"),
        (5, "one of headrace.serde"),
    ],
)
def test_what_is_not_a_serde_gets_the_serde_to_write(given, hint):
    with pytest.raises(TypeError) as raised:
        StreamsBuilder().stream("t", value=given)
    assert f"value= is a serde, not {given!r}: use {hint}" in str(raised.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b.stream("t", key=str),
        lambda b: b.table("t", key=str),
        lambda b: b.global_table("t", key=str),
        lambda b: b.stream("t").to("u", key=str),
        lambda b: b.stream("t").repartition(key=str),
        lambda b: b.stream("t").group_by_key(key=str),
        lambda b: b.stream("t").group_by(bool, key=str),
        lambda b: b.table("t").group_by(lambda value: (value, value), key=str),
        lambda b: b.stream("t").join(b.table("u"), max, key=str),
        lambda b: b.table("t", store=Materialized("s", key=str)),  # pyright: ignore[reportArgumentType]
    ],
)
def test_serdes_are_checked_wherever_they_are_given(use):
    with pytest.raises(TypeError, match=r"key= is a serde, not <class 'str'>: use serde\.STRING"):
        use(Wrong())


@pytest.mark.parametrize("aggregate", ["count", "reduce", "aggregate"])
def test_serdes_of_aggregates_are_checked(aggregate):
    arguments = {"count": [], "reduce": [max], "aggregate": [int, lambda key, value, total: total]}[aggregate]
    for grouped in (
        Wrong().stream("t").group_by_key(),
        Wrong().stream("t").group_by_key().windowed_by(TimeWindows.of(5)),
    ):
        with pytest.raises(TypeError, match=r"value= is a serde, not <class 'int'>: use serde\.LONG"):
            getattr(grouped, aggregate)(*arguments, value=int)


# ----------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    "use, message",
    [
        (
            lambda b: b.table("t").join(b.table("u"), max, foreign_key=str),
            "KTable.join() has no option foreign_key=: did you mean on=?",
        ),
        (lambda b: b.table("t").left_join(b.table("u"), max, foreign_key=str), "did you mean on=?"),
        (
            lambda b: b.table("t").outer_join(b.table("u"), max, foreign_key=str),
            "KTable.outer_join() has no option foreign_key=",
        ),
        (lambda b: b.stream("t").join(b.stream("u"), max, window=JoinWindows.of(5)), "did you mean windows=?"),
        (lambda b: b.stream("t").outer_join(b.stream("u"), max, grace=5), "KStream.outer_join() has no option grace="),
        (lambda b: b.stream("t").filter(bool, named="n"), "did you mean name=?"),
        (lambda b: b.stream("t", timestamp_extractor=max), "did you mean timestamp=?"),
        (lambda b: b.table("t", materialized="s"), "did you mean store=?"),
        (lambda b: b.stream("t").group_by_key().count(materialized="s"), "did you mean store=?"),
        (
            lambda b: b.stream("t").group_by_key().windowed_by(TimeWindows.of(5)).count(stroe="s"),
            "did you mean store=?",
        ),
        (lambda b: b.stream("t").split().branch(bool, named="n"), "did you mean name=?"),
        (lambda b: b.stream("t").repartition(num_partitions=4), "did you mean partitions=?"),
        (lambda b: b.build(optimise=True), "did you mean optimize=?"),
        (lambda b: wrong(Materialized)("s", value_serde=serde.LONG), "did you mean value=?"),
        (lambda b: wrong(TimeWindows).of(5, advance_by=1), "did you mean advance=?"),
        (
            lambda b: b.stream("t").group_by_key().count("s"),
            "KGroupedStream.count() takes no arguments by position, not 1",
        ),
        (
            lambda b: b.stream("t").to("u", serde.STRING, serde.LONG),
            "KStream.to() takes 1 argument by position (topic), not 3",
        ),
        (
            lambda b: b.stream("t").join(b.stream("u"), max, JoinWindows.of(5)),
            "KStream.join() takes 2 arguments by position",
        ),
        (lambda b: b.table("t", "s"), "StreamsBuilder.table() takes 1 argument by position (topic), not 2"),
    ],
)
def test_an_unknown_option_gets_the_list_of_options_and_a_guess(use, message):
    with pytest.raises(TypeError) as raised:
        use(Wrong())
    assert message in str(raised.value)
    assert "(options: " in str(raised.value)


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda b: b.stream(5), "a topic is a str, not 5"),
        (lambda b: b.stream("t", serde.STRING), "a topic is a str, not <serde STRING>"),
        (lambda b: b.build(optimize=5), "optimize is True, False, 'all', 'none' or names of optimizations, not 5"),
        (lambda b: b.add_store("s"), r"add_store takes a store of Stores, such as Stores\.key_value\(name\), not 's'"),
        (
            lambda b: b.table("t").suppress(Buffer.unbounded()),
            r"suppress takes Suppressed\.until_window_closes\(buffer",
        ),
        (lambda b: b.stream("t").merge(b.table("u")), r"merged with a KStream, not with .*: a table has to_stream\(\)"),
    ],
)
def test_an_argument_of_another_kind_gets_the_right_one(use, message):
    with pytest.raises(TypeError, match=message):
        use(Wrong())


# ------------------------------------------------------------------------------------------------------- Java's names
@pytest.mark.parametrize(
    "use, python",
    [
        (lambda b: b.stream("t").mapValues(len), "KStream has no 'mapValues': use map_values"),
        (lambda b: b.stream("t").groupByKey(), "use group_by_key"),
        (lambda b: b.stream("t").windowedBy(TimeWindows.of(5)), "use group_by_key().windowed_by(windows)"),
        (lambda b: b.stream("t").count(), "use group_by_key().count()"),
        (lambda b: b.stream("t").group_by_key().windowedBy(TimeWindows.of(5)), "use windowed_by"),
        (lambda b: b.table("t").toStream(), "use to_stream"),
        (lambda b: b.table("t").map(len), "use to_stream().map(f)"),
        (lambda b: b.stream("t").split().defaultBranch(), "use default_branch"),
        (lambda b: b.globalTable("t"), "use global_table"),
        (lambda b: b.addStateStore("s"), "use add_store(spec)"),
        (lambda b: wrong(Materialized).as_("s"), "use Materialized(name)"),
        (lambda b: Materialized("s").with_caching_disabled(), "use Materialized(name, caching=False)"),  # pyright: ignore[reportAttributeAccessIssue]
        (lambda b: wrong(TimeWindows).ofSizeWithNoGrace(5), "use TimeWindows.of(size)"),
        (lambda b: wrong(TimeWindows.of(5)).advance_by(1), "use TimeWindows.of(size, advance=...)"),
        (lambda b: wrong(JoinWindows).ofTimeDifferenceAndGrace(5, 1), "use JoinWindows.of(difference, grace=...)"),
        (lambda b: wrong(SessionWindows).with_(5), "use SessionWindows.of(gap)"),
        (lambda b: wrong(EmitStrategy).onWindowClose(), "use EmitStrategy.ON_WINDOW_CLOSE"),
        (lambda b: wrong(Suppressed).untilWindowCloses(), "use until_window_closes"),
    ],
)
def test_a_java_name_gets_the_python_name(use, python):
    with pytest.raises(AttributeError) as raised:
        use(Wrong())
    assert str(raised.value).endswith(python)


@pytest.mark.slow
@pytest.mark.parametrize(
    "misspelt, right",
    [
        ("StreamsBuilder().stream('t').fliter", "filter"),
        ("StreamsBuilder().table('t').fliter", "filter"),
        ("StreamsBuilder().streem", "stream"),
        ("StreamsBuilder().stream('t').group_by_key().cuont", "count"),
        ("TimeWindows.off", "of"),
    ],
)
def test_python_adds_its_own_guess(misspelt, right):
    program = f"from headrace import *\n{misspelt}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"Did you mean: {right!r}?" in done.stderr
