import pytest

from examples import orders_by_product
from examples.orders_by_product import CompleteOrder, Customer, Order, Product, Sales
from tests.examples.playing import Play, generated

LAMP, DESK, ADA = Product("lamp", 500), Product("desk", 9_000), Customer("Ada")


def begun():
    """Two products, a customer, and an order of two lamps."""
    play = Play(orders_by_product)
    play.pipe("products", ("lamp", LAMP, 0), ("desk", DESK, 0))
    play.pipe("customers", ("c1", ADA, 0))
    play.pipe("orders", ("o1", Order("lamp", "c1", 2), 1))
    return play


def read(play):
    return play.table("complete-orders"), play.table("product-sales")


def test_an_order_gets_its_product_and_its_customer_and_counts_for_its_product():
    with begun() as play:
        assert read(play) == (
            {"o1": CompleteOrder(Order("lamp", "c1", 2), LAMP, ADA)},
            {"lamp": Sales(LAMP, 1, 2, 1_000), "desk": Sales(DESK, 0, 0, 0)},
        )


def test_a_new_price_changes_every_order_of_the_product():
    with begun() as play:
        play.pipe("orders", ("o2", Order("lamp", "c9", 1), 2))
        read(play)
        dearer = Product("lamp", 600)
        play.pipe("products", ("lamp", dearer, 3))
        orders, sales = read(play)
        assert orders == {
            "o1": CompleteOrder(Order("lamp", "c1", 2), dearer, ADA),
            "o2": CompleteOrder(Order("lamp", "c9", 1), dearer, None),  # nobody knows this customer
        }
        assert sales == {"lamp": Sales(dearer, 2, 3, 1_800)}


def test_an_order_that_is_changed_to_another_product_moves_over():
    with begun() as play:
        read(play)
        play.pipe("orders", ("o1", Order("desk", "c1", 1), 2))
        assert read(play) == (
            {"o1": CompleteOrder(Order("desk", "c1", 1), DESK, ADA)},
            {"lamp": Sales(LAMP, 0, 0, 0), "desk": Sales(DESK, 1, 1, 9_000)},
        )


def test_an_order_that_is_taken_back_is_gone_everywhere():
    with begun() as play:
        read(play)
        play.pipe("orders", ("o1", None, 2))
        assert play.pairs("complete-orders") == [("o1", None)]
        assert play.table("product-sales") == {"lamp": Sales(LAMP, 0, 0, 0)}
        assert play.stored("complete-orders") == {}


def test_a_product_that_is_no_longer_sold_takes_its_orders_along():
    with begun() as play:
        read(play)
        play.pipe("products", ("lamp", None, 2))
        assert play.pairs("complete-orders") == [("o1", None)]
        assert play.stored("sales") == {"desk": Sales(DESK, 0, 0, 0)}


def test_a_customer_who_leaves_leaves_the_order_behind():
    with begun() as play:
        read(play)
        play.pipe("customers", ("c1", Customer("Countess"), 2), ("c1", None, 3))
        assert [order.customer for _, order in play.pairs("complete-orders")] == [Customer("Countess"), None]
        assert play.stored("sales")["lamp"] == Sales(LAMP, 1, 2, 1_000)


@pytest.mark.slow
def test_the_tables_are_what_one_would_compute_from_the_latest_rows():
    events = generated(orders_by_product)
    latest = {"orders": {}, "products": {}, "customers": {}}
    for event in events:
        latest[event.topic][event.key] = event.value
    orders, products, customers = ({k: v for k, v in rows.items() if v is not None} for rows in latest.values())
    complete = {
        number: CompleteOrder(order, products[order.product], customers.get(order.customer))
        for number, order in orders.items()
        if order.product in products
    }
    sales = {}
    for key, product in products.items():
        pieces = [order.quantity for order in orders.values() if order.product == key]
        sales[key] = Sales(product, len(pieces), sum(pieces), sum(pieces) * product.price)
    with Play(orders_by_product) as play:
        play.pipe_events(events)
        assert play.stored("complete-orders") == complete
        assert play.stored("sales") == sales
        assert read(play) == (complete, sales)
