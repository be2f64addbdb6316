from functools import reduce
from operator import add

from examples import stock_statistics
from examples.stock_statistics import TRADE, Statistics, Trade
from headrace import Window, Windowed
from tests.examples.playing import Play, generated


def ask(price):
    return Trade("ASK", "ABT", price, 100)


def test_a_trade_counts_in_the_five_windows_it_lies_in():
    #  2    3    4    5    6    7    8    9   10   11   12
    #       [-----------------x------)
    #                           [----x-------------------)
    with Play(stock_statistics) as play:
        play.pipe("stocks", ("ABT", ask(12.0), 7_500))
        assert [key.window for key, _ in play.pairs("stockstats-output")] == [
            Window(start, start + 5_000) for start in (3_000, 4_000, 5_000, 6_000, 7_000)
        ]


def test_minimum_number_and_average_of_the_asks():
    with Play(stock_statistics) as play:
        play.pipe("stocks", ("ABT", ask(12.0), 7_000), ("ABT", ask(9.0), 8_000), ("ABT", ask(15.0), 11_999))
        table = play.table("stockstats-output")
        assert table[Windowed("ABT", Window(3_000, 8_000))] == Statistics(12.0, 1, 12.0, 12.0)
        assert table[Windowed("ABT", Window(4_000, 9_000))] == Statistics(9.0, 2, 21.0, 10.5)
        assert table[Windowed("ABT", Window(7_000, 12_000))] == Statistics(9.0, 3, 36.0, 12.0)
        assert table[Windowed("ABT", Window(8_000, 13_000))] == Statistics(9.0, 2, 24.0, 12.0)
        assert table[Windowed("ABT", Window(11_000, 16_000))] == Statistics(15.0, 1, 15.0, 15.0)


def test_the_statistics_can_be_queried_by_ticker_and_time():
    with Play(stock_statistics) as play:
        play.pipe("stocks", ("ABT", ask(12.0), 7_000), ("ABT", ask(9.0), 8_000), ("MMM", ask(1.0), 8_000))
        store = play.store("trade-aggregates")
        assert store.fetch("ABT", 4_000) == (Statistics(9.0, 2, 21.0, 10.5), 8_000)
        assert [start for start, _ in store.fetch("ABT", 7_000, 9_000)] == [7_000, 8_000]


def test_trades_have_a_serde_of_their_own():
    assert TRADE.encode(ask(12.5)) == b"ASK,ABT,12.5,100"
    assert TRADE.decode(b"ASK,ABT,12.5,100") == ask(12.5)


def test_the_table_is_what_one_would_compute_from_all_trades():
    events, prices = generated(stock_statistics), {}
    for event in events:
        newest = event.timestamp // 1_000 * 1_000
        for start in range(newest - 4_000, newest + 1, 1_000):
            prices.setdefault(Windowed(event.key, Window(start, start + 5_000)), []).append(event.value.price)
    with Play(stock_statistics) as play:
        play.pipe_events(events)
        assert play.table("stockstats-output") == {
            window: Statistics(min(asks), len(asks), total, total / len(asks))
            for window, asks in prices.items()
            for total in [reduce(add, asks)]  # one by one: sum() has rounded otherwise since Python 3.12
        }
