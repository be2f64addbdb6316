from examples import predictive_maintenance
from examples.predictive_maintenance import HOUR, Limit, PartOrder, Reading, Repair
from tests.examples.playing import Play, generated


def watched():
    play = Play(predictive_maintenance)
    play.pipe("limits", ("press", Limit(8.0, "bearing"), 0))
    return play


def read(play, *vibrations, first=0, machine="m1", model="press"):
    readings = enumerate(vibrations, start=first)
    play.pipe("telemetry", *((machine, Reading(model, vibration), hour * HOUR) for hour, vibration in readings))


def test_the_part_is_ordered_when_the_limit_is_reached_and_only_once():
    with watched() as play:
        read(play, 3.0, 7.9, 8.0, 8.5, 9.0, 9.0)
        [order] = play.records("spare-part-orders")
        assert (order.key, order.value, order.timestamp) == ("m1", PartOrder(1, "bearing", "limit reached"), 2 * HOUR)


def test_the_part_is_ordered_when_the_trend_reaches_the_limit_within_a_day():
    with watched() as play:
        steady = [4.0 + 0.1 * hour for hour in range(11)]
        read(play, *steady)
        assert play.pairs("spare-part-orders") == []  # too few readings for a trend
        read(play, 5.1, 5.2, 5.3, first=11)  # + 24 x 0.1: 7.5 … 7.7
        assert play.pairs("spare-part-orders") == []
        read(play, 6.4, first=14)
        assert play.pairs("spare-part-orders") == [("m1", PartOrder(1, "bearing", "limit expected"))]


def test_after_the_repair_the_next_wear_is_the_next_order():
    with watched() as play:
        read(play, 9.0, 9.0)
        play.pipe("repairs", ("m1", Repair("bearing"), 2 * HOUR))
        read(play, 2.0, 2.1, 9.0, first=3)
        assert play.pairs("spare-part-orders") == [
            ("m1", PartOrder(1, "bearing", "limit reached")),
            ("m1", PartOrder(2, "bearing", "limit reached")),
        ]


def test_machines_and_models_are_told_apart_and_limits_can_change():
    with watched() as play:
        read(play, 9.0, machine="m2", model="lathe")  # a model without a limit
        play.pipe("limits", ("lathe", Limit(5.0, "spindle"), 0))
        read(play, 9.0, machine="m2", model="lathe", first=1)
        read(play, 7.0, machine="m3")
        play.pipe("limits", ("press", Limit(7.0, "bearing"), 0))
        read(play, 7.0, machine="m3", first=1)
        assert [(machine, order.part) for machine, order in play.pairs("spare-part-orders")] == [
            ("m2", "spindle"), ("m3", "bearing"),
        ]  # fmt: skip


def test_between_two_repairs_there_is_one_order():
    events = generated(predictive_maintenance)
    with Play(predictive_maintenance) as play:
        play.pipe_events(events)
        orders = play.records("spare-part-orders")
    for machine in sorted({event.key for event in events if event.topic == "telemetry"}):
        of_machine = [order for order in orders if order.key == machine]
        assert [order.value.number for order in of_machine] == list(range(1, len(of_machine) + 1))
        repairs = [event.timestamp for event in events if (event.topic, event.key) == ("repairs", machine)]
        between = [sum(repair <= order.timestamp for repair in repairs) for order in of_machine]
        assert between == sorted(set(between))
        assert len(of_machine) in (len(repairs), len(repairs) + 1)
    assert len(orders) > 10
