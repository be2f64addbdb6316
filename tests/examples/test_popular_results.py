from collections import Counter

from examples import popular_results
from examples.popular_results import Click, Popular, Search
from tests.examples.playing import Play, generated, of_topic


def test_a_click_counts_for_the_search_of_the_same_user_up_to_five_seconds_before():
    with Play(popular_results) as play:
        play.pipe("searches", ("ada", Search("kafka"), 0), ("bob", Search("spark"), 0))
        play.pipe("clicks", ("ada", Click("k1"), 5_000), ("bob", Click("s1"), 5_001), ("cyd", Click("k2"), 1_000))
        assert play.pairs("popular-results") == [("kafka", Popular("k1", 1))]


def test_a_click_before_the_search_is_not_its_result():
    with Play(popular_results) as play:
        play.pipe("clicks", ("ada", Click("k1"), 999))
        play.pipe("searches", ("ada", Search("kafka"), 1_000))
        assert play.pairs("popular-results") == []


def test_the_most_popular_result_of_a_query_is_the_one_with_the_most_clicks():
    with Play(popular_results) as play:
        for number, result in enumerate(("k2", "k1", "k2", "k1", "k1")):
            play.pipe("searches", (f"user-{number}", Search("kafka"), number))
            play.pipe("clicks", (f"user-{number}", Click(result), number + 100))
        assert [value for _, value in play.pairs("popular-results")] == [
            Popular("k2", 1), Popular("k1", 1), Popular("k2", 2), Popular("k1", 2), Popular("k1", 3),
        ]  # fmt: skip
        assert play.stored("clicks-by-query") == {"kafka": {"k2": 2, "k1": 3}}


def test_the_table_is_what_one_would_compute_from_all_events():
    events = generated(popular_results)
    searches, counts = of_topic(events, "searches"), {}
    for click in of_topic(events, "clicks"):
        for search in searches:
            if search.key == click.key and click.timestamp - 5_000 <= search.timestamp <= click.timestamp:
                counts.setdefault(search.value.query, Counter())[click.value.result] += 1
    with Play(popular_results) as play:
        play.pipe_events(events)
        assert play.stored("clicks-by-query") == counts
        assert play.table("popular-results") == {
            query: Popular(*max(sorted(of_query.items()), key=lambda item: item[1]))
            for query, of_query in counts.items()
        }
