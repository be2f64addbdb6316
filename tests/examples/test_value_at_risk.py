from math import isqrt

from examples import value_at_risk
from examples.value_at_risk import Position, Price, Rebalance, Risk
from tests.examples.playing import Play, generated

RISKS, ORDERS = "value-at-risk", "rebalancing-orders"


def begun():
    """A portfolio with 100 pieces at 300 dollars: a deviation of 30,000 x 1 % = 300 dollars a day."""
    play = Play(value_at_risk)
    play.pipe("prices", ("ACME", Price(300, 10), 0), ("BOLT", Price(40, 100), 0))
    play.pipe("positions", ("p/ACME", Position("p", "ACME", 100), 1))
    return play


def test_the_value_at_risk_is_1_65_deviations():
    with begun() as play:
        assert play.table(RISKS) == {"p": Risk(30_000, 90_000, 495)}


def test_the_variances_of_two_stocks_add_up():
    with begun() as play:
        play.pipe("positions", ("p/BOLT", Position("p", "BOLT", 100), 2))  # 4,000 x 10 % = 400; √(300² + 400²) = 500
        assert play.table(RISKS) == {"p": Risk(34_000, 250_000, 825)}


def test_a_new_price_changes_all_portfolios_that_hold_the_stock():
    with begun() as play:
        play.pipe("positions", ("q/ACME", Position("q", "ACME", 10), 2))
        play.pairs(RISKS)
        play.pipe("prices", ("ACME", Price(600, 10), 3))
        assert play.table(RISKS) == {"p": Risk(60_000, 360_000, 990), "q": Risk(6_000, 3_600, 99)}


def test_a_position_that_is_closed_or_moved_no_longer_counts():
    with begun() as play:
        play.pipe("positions", ("x", Position("p", "BOLT", 100), 2), ("x", Position("q", "BOLT", 100), 3))
        assert play.table(RISKS) == {"p": Risk(30_000, 90_000, 495), "q": Risk(4_000, 160_000, 660)}
        play.pipe("positions", ("x", None, 4))
        assert play.table(RISKS) == {"q": Risk(0, 0, 0)}


def test_an_order_goes_out_each_time_the_limit_is_passed():
    with begun() as play:
        play.pipe("risk-limits", ("p", 600, 2))
        assert play.pairs(ORDERS) == []
        play.pipe("prices", ("ACME", Price(400, 10), 3), ("ACME", Price(450, 10), 4))  # 660, 742: one order
        assert play.pairs(ORDERS) == [("p", Rebalance(660, 600, 10))]
        play.pipe("prices", ("ACME", Price(300, 10), 5), ("ACME", Price(400, 10), 6))  # below, and above again
        assert play.pairs(ORDERS) == [("p", Rebalance(660, 600, 10))]
        play.pipe("risk-limits", ("p", 1_000, 7), ("p", 330, 8))
        assert play.pairs(ORDERS) == [("p", Rebalance(660, 330, 50))]


def test_the_table_is_what_one_would_compute_from_the_latest_rows():
    events = generated(value_at_risk)
    latest = {"positions": {}, "prices": {}, "risk-limits": {}}
    for event in events:
        latest[event.topic][event.key] = event.value
    expected = {}
    for portfolio in ("growth", "income", "mixed"):
        values = [
            (position.pieces * price.price, position.pieces * price.price * price.volatility // 1000)
            for position in latest["positions"].values()
            if position is not None and position.portfolio == portfolio
            for price in [latest["prices"][position.symbol]]
        ]
        variance = sum(deviation**2 for _, deviation in values)
        expected[portfolio] = Risk(sum(value for value, _ in values), variance, isqrt(variance) * 165 // 100)
    with Play(value_at_risk) as play:
        play.pipe_events(events)
        risks, orders = play.pairs(RISKS), play.pairs(ORDERS)
        assert dict(risks) == play.stored("risks") == expected
    assert orders == list(passed(risks, latest["risk-limits"]))


def passed(risks, limits):
    """The orders of a history of risks."""
    above = dict.fromkeys(limits, False)
    for portfolio, risk in risks:
        limit, was_above = limits[portfolio], above[portfolio]
        above[portfolio] = risk.at_risk > limit
        if above[portfolio] and not was_above:
            yield portfolio, Rebalance(risk.at_risk, limit, 100 - 100 * limit // risk.at_risk)
