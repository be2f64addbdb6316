from examples import order_enrichment
from examples.order_enrichment import Customer, EnrichedOrder, Order
from tests.examples.playing import Play, generated


def test_an_order_gets_its_customer_and_a_risk():
    with Play(order_enrichment) as play:
        play.pipe("orders", ("o1", Order(4, 50.0), 1), ("o2", Order(5, 5000.0), 2))
        assert play.pairs("enriched-orders") == [
            ("o1", EnrichedOrder(Order(4, 50.0), Customer("customer-4", "BR"), 0.1)),
            ("o2", EnrichedOrder(Order(5, 5000.0), Customer("customer-5", "CL"), 1.0)),
        ]


def test_every_order_comes_out_once_in_its_order():
    events = generated(order_enrichment)
    with Play(order_enrichment) as play:
        play.pipe_events(events)
        assert [(key, found.order) for key, found in play.pairs("enriched-orders")] == [
            (event.key, event.value) for event in events
        ]
