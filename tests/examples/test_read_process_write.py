from examples import read_process_write
from examples.read_process_write import Payment, in_euros
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
