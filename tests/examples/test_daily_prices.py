from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from examples import daily_prices
from examples.daily_prices import DailyPrices, Trade
from tests.examples.playing import Play, generated

NEW_YORK = ZoneInfo("America/New_York")


def at(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=NEW_YORK).timestamp() * 1_000)


def day_of(timestamp):
    return datetime.fromtimestamp(timestamp / 1_000, NEW_YORK).date()


def test_minimum_maximum_and_moving_average_start_again_every_day():
    with Play(daily_prices) as play:
        play.pipe(
            "trades",
            ("ACME", Trade(10.0, 1), at("2026-01-05T09:30")),
            ("ACME", Trade(14.0, 1), at("2026-01-05T12:00")),
            ("ACME", Trade(9.0, 1), at("2026-01-05T23:59")),
            ("ACME", Trade(20.0, 1), at("2026-01-06T00:00")),
        )
        first, second = play.table("daily-prices").values()
        assert first == DailyPrices(9.0, 14.0, 11.0, (10.0, 14.0, 9.0))
        assert second == DailyPrices(20.0, 20.0, 20.0, (20.0,))


def test_the_moving_average_is_of_the_last_ten_trades():
    with Play(daily_prices) as play:
        prices = [100.0, *(float(price) for price in range(1, 11))]
        play.pipe("trades", *(("ACME", Trade(price, 1), at("2026-01-05T10:00")) for price in prices))
        [day] = play.table("daily-prices").values()
        assert (day.minimum, day.maximum, day.moving_average) == (1.0, 100.0, 5.5)


def test_the_day_on_which_the_clocks_go_forward_has_23_hours():
    with Play(daily_prices) as play:
        play.pipe("trades", ("ACME", Trade(1.0, 1), at("2026-03-08T12:00")))
        [(key, _)] = play.pairs("daily-prices")
        assert (key.window.start, key.window.end) == (at("2026-03-08T00:00"), at("2026-03-09T00:00"))
        assert key.window.end - key.window.start == 23 * 3_600_000


def test_a_trade_counts_for_its_day_up_to_an_hour_late():
    with Play(daily_prices) as play:
        play.pipe(
            "trades",
            ("ACME", Trade(5.0, 1), at("2026-01-05T23:00")),
            ("BOLT", Trade(1.0, 1), at("2026-01-06T00:59")),
            ("ACME", Trade(4.0, 1), at("2026-01-05T23:30")),
            ("BOLT", Trade(1.0, 1), at("2026-01-06T01:00")),
            ("ACME", Trade(3.0, 1), at("2026-01-05T23:45")),
        )
        assert min(day.minimum for key, day in play.table("daily-prices").items() if key.key == "ACME") == 4.0
        assert play.dropped == 1


def test_the_table_is_what_one_would_compute_from_all_trades():
    events, days = generated(daily_prices), {}
    for event in events:
        days.setdefault((event.key, day_of(event.timestamp)), []).append(event.value.price)
    with Play(daily_prices) as play:
        play.pipe_events(events)
        table = play.table("daily-prices")
    assert all(key.window.end - key.window.start == timedelta(days=1) // timedelta(milliseconds=1) for key in table)
    assert {(key.key, day_of(key.window.start)): day for key, day in table.items()} == {
        which: DailyPrices(min(prices), max(prices), sum(prices[-10:]) / len(prices[-10:]), tuple(prices[-10:]))
        for which, prices in days.items()
    }
