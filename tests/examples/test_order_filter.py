from examples import order_filter
from examples.order_filter import Order
from tests.examples.playing import Play, generated


def test_only_orders_of_more_than_five_pieces_go_on():
    orders = [(f"o{n}", Order("lamp", n, "ada"), n) for n in (4, 5, 6, 7)]
    with Play(order_filter) as play:
        play.pipe("orders", *orders)
        assert play.pairs("filtered-orders") == [("o6", Order("lamp", 6, "ada")), ("o7", Order("lamp", 7, "ada"))]


def test_orders_are_json_and_keep_their_time_and_headers():
    with Play(order_filter) as play:
        raw = play.input_topic("orders")
        raw.pipe(b"o1", b'{"product":"lamp","quantity":9,"customer":"ada"}', timestamp=42, headers=[("trace", b"1")])
        [record] = play.output_topic("filtered-orders").read_records()
        assert record.value == b'{"product":"lamp","quantity":9,"customer":"ada"}'
        assert (record.timestamp, record.headers) == (42, (("trace", b"1"),))


def test_the_output_is_the_large_orders_in_their_order():
    events = generated(order_filter)
    with Play(order_filter) as play:
        play.pipe_events(events)
        large = [(event.key, event.value) for event in events if event.value.quantity > 5]
        assert play.pairs("filtered-orders") == large
