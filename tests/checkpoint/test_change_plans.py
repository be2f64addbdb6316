"""What a plan says of a changed topology, and what it leaves to the user."""

import pytest

from headrace import Materialized, StreamsBuilder, TimeWindows, serde
from headrace.checkpoint.change_plan import match_stores, match_topics, plan_changes
from headrace.checkpoint.ledger import Ledger
from tests.checkpoint.programs import TEXTS
from tests.checkpoint.test_fingerprints import counting, fingerprint


def planned(before, now, partitions=(2, 2), **options):
    ledger = Ledger()
    ledger.fingerprint, ledger.application, ledger.number = fingerprint(before, partitions[0]), "app", 7
    return plan_changes(ledger, fingerprint(now, partitions[1]), **options)


def said(plan, subject="store"):
    return {change.name: (change.action, change.before) for change in plan.changes if change.subject == subject}


def counts(*wanted, before=lambda stream: stream):
    """Counts of one topic; a name, or None for a generated one, and the topic that it is written to."""
    builder = StreamsBuilder()
    stream = before(builder.stream("in", **TEXTS))
    for name, out in wanted:
        table = stream.group_by_key().count(store=Materialized(name, value=serde.LONG))
        if out:
            table.to_stream().to(out)
    return builder.build()


def shifted(stream):
    return stream.filter(lambda _, value: True)


def test_the_same_topology_changes_nothing():
    plan = planned(counting(), counting())
    assert not plan.has_changes
    assert plan.decisions == []
    assert plan.describe().endswith("Nothing changes.")


def test_a_generated_name_that_shifts_is_the_same_store():
    plan = planned(counts((None, "out")), counts((None, "out"), before=shifted))
    old, new = "KSTREAM-AGGREGATE-STATE-STORE-0000000002", "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    assert said(plan) == {new: ("renamed", old)}
    assert plan.decisions == []


def test_two_stores_that_are_alike_are_told_apart_by_where_they_lead():
    two = [(None, "one"), (None, "two")]
    plan = planned(counts(*two), counts(*two, before=shifted))
    assert plan.decisions == []
    assert all(action == "renamed" for action, _ in said(plan).values())
    assert len({old for _, old in said(plan).values()}) == 2


def test_two_stores_that_nothing_tells_apart_are_for_the_user_to_decide():
    two = [(None, None), (None, None)]
    plan = planned(counts(*two), counts(*two, before=shifted))
    assert len(plan.decisions) == 2
    assert all("headrace state rename" in decision for decision in plan.decisions)
    assert "does not start before" in plan.describe()
    assert planned(counts(*two), counts(*two)).decisions == []


def test_one_store_more_among_those_that_are_alike_is_for_the_user_to_decide():
    match = match_stores(
        fingerprint(counts((None, None), (None, None))), fingerprint(counts((None, None), (None, None), (None, None)))
    )
    assert match.pairs == {}
    assert len(match.unclear) == 3


def test_a_store_of_another_topic_is_another_store():
    plan = planned(counting(topic="in", store=None), counting(topic="lines", store=None))
    (decision,) = plan.decisions
    assert "over in is gone, and a store over lines has its name" in decision
    plan = planned(counting(topic="in", store=None), counting(topic="lines", store=None, before=shifted))
    assert sorted(action for action, _ in said(plan).values()) == ["new", "removed"]
    assert plan.decisions == []


def test_a_store_that_gets_a_name_is_the_same_and_one_that_changes_it_is_asked_for():
    assert said(planned(counts((None, "out")), counts(("mine", "out"))))["mine"][0] == "renamed"
    plan = planned(counts(("mine", "out")), counts(("yours", "out")))
    (decision,) = plan.decisions
    assert "headrace state rename mine yours" in decision
    assert "headrace state remove mine" in decision


def test_what_does_not_fit_says_why():
    plan = planned(counting(), counting(value=serde.INTEGER))
    (decision,) = plan.decisions
    assert "had the value serde LONG and now has INTEGER" in decision
    assert planned(counting(), counting(value=serde.INTEGER), migrations={"counts": "LONG"}).decisions == []
    (decision,) = planned(counting(), counting(), (2, 3)).decisions
    assert "its state (counts) would have to be rescaled" in decision
    rescaled = planned(counting(), counting(), (2, 3), refusals=lambda number: [])
    assert rescaled.decisions == []
    assert rescaled.rescaled == {1: (2, 3)}
    assert "late" not in rescaled.describe()
    (decision,) = planned(counting(), counting(), (2, 3), refusals=lambda number: ["because"]).decisions
    assert "because" in decision


def test_the_plan_says_where_stream_time_decides():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).group_by_key().windowed_by(TimeWindows.of(100)).count(store="visits")
    plan = planned(builder.build(), builder.build(), (2, 3), refusals=lambda number: [])
    assert "a record of visits may be late that was not before" in plan.describe()


def test_sources_and_sub_topologies_that_come_and_go():
    builder = StreamsBuilder()
    builder.stream("news", **TEXTS).group_by_key().count(store="news")
    builder.stream("in", **TEXTS).group_by(lambda _, word: word, **TEXTS).count(store="counts")
    plan = planned(counting(), builder.build())
    assert said(plan, "source") == {"in": ("kept", "in"), "news": ("new", None)}
    assert said(plan, "sub-topology") == {"0": ("new", None), "1": ("moved", "0"), "2": ("moved", "1")}
    assert said(plan, "internal topic") == {"counts-repartition": ("kept", "counts-repartition")}
    assert said(plan) == {"counts": ("kept", "counts"), "news": ("new", None)}
    back = planned(builder.build(), counting())
    assert ("removed", None) in said(back, "sub-topology").values()
    assert said(back, "source")["news"] == ("removed", "news")


def test_a_plan_is_plain_data_too():
    found = planned(counts(("mine", "out")), counts(("yours", "out"))).to_json()
    assert (found["application"], found["batch"], found["decisions"]) == ("app", 7, 1)
    assert {"subject", "name", "action", "before", "effect", "decision", "choice", "entries", "bytes"} == set(
        found["changes"][0]
    )


@pytest.mark.parametrize(
    "old, new, pairs, unclear",
    [
        (["a-repartition"], ["a-repartition"], {"a-repartition": "a-repartition"}, set()),
        (["a-repartition"], ["b-repartition"], {}, set()),
        (
            ["KTABLE-A-0000000001-x"],
            ["KTABLE-A-0000000004-x"],
            {"KTABLE-A-0000000001-x": "KTABLE-A-0000000004-x"},
            set(),
        ),
        (
            ["KTABLE-A-0000000001-x", "KTABLE-A-0000000005-x"],
            ["KTABLE-A-0000000005-x"],
            {},
            {"KTABLE-A-0000000001-x", "KTABLE-A-0000000005-x"},
        ),
    ],
)
def test_internal_topics(old, new, pairs, unclear):
    assert match_topics(old, new, {}) == (pairs, unclear)
