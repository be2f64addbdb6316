from collections import defaultdict

import pytest

from examples import read_process_write
from examples.read_process_write import PAYMENT, Payment, in_euros, run_by_hand
from headrace import Admin, Consumer, Producer, serde
from tests.examples.playing import Play, generated


def test_payments_are_written_in_euros():
    with Play(read_process_write) as play:
        play.pipe("payments", ("ada", Payment(1_000, "USD"), 5), ("bob", Payment(50, "EUR"), 6))
        assert [(record.key, record.value, record.timestamp) for record in play.records("payments-in-euros")] == [
            ("ada", Payment(920, "EUR"), 5),
            ("bob", Payment(50, "EUR"), 6),
        ]


def test_a_payment_in_an_unknown_currency_is_left_out():
    with Play(read_process_write) as play:
        play.pipe("payments", ("ada", Payment(1_000, "SHELLS"), 5))
        assert play.pairs("payments-in-euros") == []


def test_each_payment_comes_out_once_in_its_order():
    events = generated(read_process_write)
    converted = [(event.key, in_euros(event.value)) for event in events]
    with Play(read_process_write) as play:
        play.pipe_events(events)
        assert play.pairs("payments-in-euros") == [pair for pair in converted if pair[1] is not None]


# --------------------------------------------------------------------------------------------------------- by hand
@pytest.fixture
def log(tmp_path):
    """A log with three partitions of everything, and some payments."""
    address = f"file:{tmp_path}/log"
    with Admin(address) as admin:
        for topic in ("payments", "payments-in-euros", "elsewhere"):
            admin.create_topic(topic, partitions=3)
    send(address, generated(read_process_write, 300))
    return address


def send(log, events):
    with Producer(log, key=serde.STRING, value=PAYMENT) as producer:
        for event in events:
            producer.send(event.topic, event.key, event.value, timestamp=event.timestamp)


def written(log, topic):
    """The values and timestamps of every customer, in their order."""
    by_customer = defaultdict(list)
    with Consumer(log, key=serde.STRING, value=PAYMENT, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while records := consumer.poll():
            for record in records:
                by_customer[record.key].append((record.value, record.timestamp))
    return by_customer


def test_by_hand_it_is_the_same_as_in_the_dsl(log):
    by_customer = defaultdict(list)
    with Play(read_process_write) as play:
        play.pipe_events(generated(read_process_write, 300))
        for record in play.records("payments-in-euros"):
            by_customer[record.key].append((record.value, record.timestamp))
    assert run_by_hand(log, idle=0) == 300
    assert written(log, "payments-in-euros") == by_customer


def test_by_hand_it_goes_on_where_it_had_got_to(log):
    run_by_hand(log, idle=0)
    before = written(log, "payments-in-euros")
    assert run_by_hand(log, idle=0) == 0
    assert written(log, "payments-in-euros") == before
    send(log, generated(read_process_write, 310)[300:])
    assert run_by_hand(log, "elsewhere", idle=0) == 10


def test_by_hand_what_was_not_committed_is_written_again(log):
    run_by_hand(log, idle=0)
    once = written(log, "payments-in-euros")
    with Admin(log) as admin:
        admin.reset_offsets(read_process_write.GROUP, "payments", to="earliest")  # as if it had died before the commit
    assert run_by_hand(log, idle=0) == 300
    assert written(log, "payments-in-euros") == {customer: payments * 2 for customer, payments in once.items()}
