from datetime import datetime
from zoneinfo import ZoneInfo

from examples import top_10_stocks
from examples.top_10_stocks import Place, Trade
from tests.examples.playing import Play, generated

MORNING = 1_767_625_200_000  # 5 January 2026, 10:00 in New York
DAY = 86_400_000


def trades(prices, time):
    return [(symbol, Trade(float(price)), time) for symbol, price in prices.items()]


def opened(play, count):
    """So many stocks open at 100, then the first gains 1 %, the second 2 %, and so on."""
    symbols = [f"S{n:02}" for n in range(1, count + 1)]
    play.pipe("trades", *trades(dict.fromkeys(symbols, 100), MORNING))
    play.pipe("trades", *trades({symbol: 100 + n for n, symbol in enumerate(symbols, start=1)}, MORNING + 1))


def test_the_ten_best_are_ranked_by_their_gain_of_the_day():
    with Play(top_10_stocks) as play:
        opened(play, 12)
        table = play.table("top-10-stocks")
        assert table == {f"S{n:02}": Place(13 - n, float(n)) for n in range(3, 13)}
        assert play.stored("top-10") == table


def test_a_stock_that_falls_out_leaves_the_list_and_the_next_one_comes_in():
    with Play(top_10_stocks) as play:
        opened(play, 11)
        assert set(play.table("top-10-stocks")) == {f"S{n:02}" for n in range(2, 12)}
        play.pipe("trades", ("S11", Trade(90.0), MORNING + 2))
        changes = play.pairs("top-10-stocks")
        assert changes[0] == ("S11", None)
        assert changes[1:] == [(f"S{n:02}", Place(11 - n, float(n))) for n in range(10, 0, -1)]
        assert "S11" not in play.stored("top-10")


def test_a_gain_that_changes_no_rank_changes_one_row():
    with Play(top_10_stocks) as play:
        opened(play, 11)
        play.pairs("top-10-stocks")
        play.pipe("trades", ("S11", Trade(120.0), MORNING + 2), ("S01", Trade(100.5), MORNING + 3))
        assert play.pairs("top-10-stocks") == [("S11", Place(1, 20.0))]


def test_a_new_day_begins_with_an_empty_list():
    with Play(top_10_stocks) as play:
        opened(play, 11)
        play.pipe("trades", ("S05", Trade(100.0), MORNING + DAY), ("S05", Trade(101.0), MORNING + DAY + 1))
        assert play.table("top-10-stocks") == {"S05": Place(1, 1.0)}


def test_all_gains_meet_in_a_topic_of_one_partition():
    topics = top_10_stocks.build().graph().internal_topics
    assert [(topic.name, topic.partitions) for topic in topics.values()] == [("gains-of-all-repartition", 1)]


def test_the_list_is_what_one_would_compute_from_the_trades_of_the_last_day():
    events = generated(top_10_stocks)
    last_day = day_of(events[-1])
    first, last = {}, {}
    for event in events:
        if day_of(event) == last_day:
            first.setdefault(event.key, event.value.price)
            last[event.key] = event.value.price
    gains = {symbol: round(100 * (last[symbol] - first[symbol]) / first[symbol], 2) for symbol in first}
    best = sorted(gains, key=lambda symbol: (-gains[symbol], symbol))[:10]
    with Play(top_10_stocks) as play:
        play.pipe_events(events)
        assert play.table("top-10-stocks") == {
            symbol: Place(rank, gains[symbol]) for rank, symbol in enumerate(best, start=1)
        }


def day_of(event):
    return datetime.fromtimestamp(event.timestamp / 1_000, ZoneInfo("America/New_York")).date()
