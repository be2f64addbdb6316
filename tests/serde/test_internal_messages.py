"""Changes, subscriptions and responses: the formats between sub-topologies, pinned by golden bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serde import LONG, STRING
from headrace.serde.internal import (
    Instruction,
    Response,
    Subscription,
    change_serde,
    response_serde,
    subscription_serde,
)

CHANGE, SUBSCRIPTION, RESPONSE = change_serde(STRING), subscription_serde(STRING), response_serde(LONG)
INSTRUCTIONS = st.sampled_from(Instruction)
HASHES = st.none() | st.binary(max_size=16)
PARTITIONS = st.none() | st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    "change, raw",
    [
        ((None, None, False), "00"),
        ((None, None, True), "04"),
        (("n", None, True), "056e"),
        ((None, "o", False), "026f"),
        (("", "", True), "0700000000"),
        (("new", "o", True), "07000000036e65776f"),
    ],
)
def test_a_change_has_these_bytes(change, raw):
    assert CHANGE.encode(change).hex() == raw
    decoded = CHANGE.decode(bytes.fromhex(raw))
    assert decoded == change
    assert type(decoded) is tuple


@pytest.mark.parametrize(
    "subscription, raw",
    [
        (Subscription(None, Instruction.DELETE_KEY_NO_PROPAGATE, "k"), "006b"),
        (Subscription(b"\xab\xcd", Instruction.DELETE_KEY_AND_PROPAGATE, "k"), "0502abcd6b"),
        (Subscription(b"", Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE, "", 1), "0e0000000001"),
        (Subscription(b"\x01", Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "key", 258), "0f0101000001026b6579"),
    ],
)
def test_a_subscription_has_these_bytes(subscription, raw):
    assert SUBSCRIPTION.encode(subscription).hex() == raw
    decoded = SUBSCRIPTION.decode(bytes.fromhex(raw))
    assert decoded == subscription
    assert isinstance(decoded.instruction, Instruction)


@pytest.mark.parametrize(
    "response, raw",
    [
        (Response(None, None), "00"),
        (Response(None, 1), "000000000000000001"),
        (Response(b"\xab", None, 0), "0c01ab00000000"),
        (Response(b"\xab", -1, 3), "0c01ab00000003ffffffffffffffff"),
    ],
)
def test_a_response_has_these_bytes(response, raw):
    assert RESPONSE.encode(response).hex() == raw
    assert RESPONSE.decode(bytes.fromhex(raw)) == response


def test_a_right_value_of_no_bytes_arrives_as_no_value():
    serde = response_serde(STRING)
    assert serde.decode(serde.encode(Response(None, ""))) == Response(None, None)


@given(st.tuples(st.none() | st.text(), st.none() | st.text(), st.booleans()))
def test_changes_come_back(change):
    assert CHANGE.decode(CHANGE.encode(change)) == change


@given(st.builds(Subscription, HASHES, INSTRUCTIONS, st.text(), PARTITIONS))
def test_subscriptions_come_back(subscription):
    assert SUBSCRIPTION.decode(SUBSCRIPTION.encode(subscription)) == subscription


@given(st.builds(Response, HASHES, st.none() | st.integers(-(2**63), 2**63 - 1), PARTITIONS))
def test_responses_come_back(response):
    assert RESPONSE.decode(RESPONSE.encode(response)) == response


@pytest.mark.parametrize("raw", ["", "07", "0700", "07000000056162", "08", "0461"])
def test_broken_changes_are_refused(raw):
    with pytest.raises(ValueError, match="not a change"):
        CHANGE.decode(bytes.fromhex(raw))


@pytest.mark.parametrize("raw", ["", "04", "0405", "0801", "10", "ff"])
@pytest.mark.parametrize("serde", [SUBSCRIPTION, RESPONSE], ids=repr)
def test_broken_messages_are_refused(serde, raw):
    with pytest.raises(ValueError, match="not a message of a foreign-key join"):
        serde.decode(bytes.fromhex(raw))
