from examples import inventory
from examples.inventory import Order, Validation
from tests.examples.playing import Play, generated


def order(play, id, quantity, time, product="lamp"):
    play.pipe("orders", (id, Order(id, product, quantity), time))


def test_orders_are_reserved_until_the_stock_is_used_up():
    with Play(inventory) as play:
        play.pipe("warehouse-inventory", ("lamp", 10, 0))
        for number, quantity in enumerate((6, 5, 4, 1)):
            order(play, f"o{number}", quantity, number)
        assert play.pairs("order-validations") == [
            ("o0", Validation("reserved", "lamp", 6)),
            ("o1", Validation("rejected", "lamp", 5)),
            ("o2", Validation("reserved", "lamp", 4)),
            ("o3", Validation("rejected", "lamp", 1)),
        ]


def test_the_stock_and_what_is_reserved_of_it_can_be_queried():
    with Play(inventory) as play:
        play.pipe("warehouse-inventory", ("lamp", 10, 0))
        order(play, "o1", 6, 1)
        assert play.store("warehouse").get("lamp") == (10, 0)
        assert play.store("reserved").get("lamp") == 6


def test_a_delivery_makes_room_for_more():
    with Play(inventory) as play:
        order(play, "o1", 1, 0)  # nothing is known of lamps
        play.pipe("warehouse-inventory", ("lamp", 1, 1))
        order(play, "o2", 1, 2)
        order(play, "o3", 1, 3)
        play.pipe("warehouse-inventory", ("lamp", 2, 4))
        order(play, "o4", 1, 5)
        assert [answer.result for _, answer in play.pairs("order-validations")] == [
            "rejected", "reserved", "rejected", "reserved",
        ]  # fmt: skip


def test_the_answers_are_what_one_would_compute_one_order_after_the_other():
    events, stock, reserved, expected = generated(inventory), {}, {}, []
    for event in events:
        if event.topic == "warehouse-inventory":
            stock[event.key] = event.value
            continue
        product, quantity = event.value.product, event.value.quantity
        enough = reserved.get(product, 0) + quantity <= stock.get(product, 0)
        reserved[product] = reserved.get(product, 0) + quantity * enough
        expected.append((event.key, Validation("reserved" if enough else "rejected", product, quantity)))
    with Play(inventory) as play:
        play.pipe_events(events)
        assert play.pairs("order-validations") == expected
        assert play.stored("reserved") == reserved
        assert play.stored("warehouse") == stock
        assert all(reserved[product] <= stock[product] for product in reserved)
