from collections import Counter

from examples import top_products
from examples.top_products import CLICKS, ORDERS, TOP, Click, Order, Place
from tests.examples.playing import Play, generated


def expected_places(orders: dict[int, Order], clicks: Counter[int]) -> dict[int, Place]:
    """The list, of what is there in the end: as a query of a database would find it."""
    products = {order.product for order in orders.values()}
    rows = []
    for product in sorted(products):
        chosen = [order for order in orders.values() if order.product == product and clicks[order.id]]
        if chosen:
            totals = len(chosen), sum(clicks[order.id] for order in chosen), sum(order.cents for order in chosen)
            rows.append(Place(product, *totals))
    return dict(enumerate(sorted(rows, key=lambda place: -place.cents)[: top_products.LENGTH], start=1))


def test_an_order_counts_when_it_is_clicked_and_stops_when_it_is_cancelled():
    with Play(top_products) as play:
        play.pipe(ORDERS, (1, Order(1, "tea", 500), 1), (2, Order(2, "cocoa", 300), 2))
        play.pipe(CLICKS, (1, Click("/"), 3), (2, Click("/"), 4), (2, Click("/a"), 5))
        assert play.table(TOP) == {1: Place("tea", 1, 1, 500), 2: Place("cocoa", 1, 2, 300)}
        play.pipe(ORDERS, (1, Order(1, "cocoa", 400), 6))
        assert play.table(TOP) == {1: Place("cocoa", 2, 3, 700)}
        play.pipe(ORDERS, (2, None, 7))
        assert play.table(TOP) == {1: Place("cocoa", 1, 1, 400)}


def test_generated_events_come_to_what_a_query_of_orders_and_clicks_finds():
    events = generated(top_products)
    orders, clicks = dict[int, Order](), Counter[int]()
    for event in events:
        if event.topic == CLICKS:
            clicks[event.key] += 1
        elif event.value is None:
            del orders[event.key]
        else:
            orders[event.key] = event.value
    with Play(top_products) as play:
        play.pipe_events(events)
        assert play.table(TOP) == expected_places(orders, clicks)
