from examples import star_wars
from examples.star_wars import YEAR, Film
from tests.examples.playing import Play, generated

RELEASE = ["IV", "V", "VI", "I", "II", "III", "VII"]
STORY = ["I", "II", "III", "IV", "V", "VI", "VII"]


def shown(build, count=14):
    with Play(star_wars, build()) as play:
        play.pipe_events(generated(star_wars, count))
        return play.records("films-in-order")


def test_the_films_come_as_they_were_released():
    assert [event.value.episode for event in generated(star_wars, 7)] == RELEASE


def test_by_event_time_they_go_on_in_the_order_of_the_story():
    assert [record.key for record in shown(star_wars.build)][:7] == STORY


def test_by_processing_time_they_go_on_in_the_order_of_their_release():
    assert [record.key for record in shown(star_wars.build_by_release)][:7] == RELEASE


def test_a_film_goes_on_when_the_story_is_40_years_ahead_of_it():
    with Play(star_wars) as play:
        play.pipe("films", ("saga", Film("VI", "", 36 * YEAR), 0), ("saga", Film("I", "", 0), 1))
        play.pipe("films", ("saga", Film("?", "", 40 * YEAR - 1), 2))
        assert play.pairs("films-in-order") == []
        play.pipe("films", ("saga", Film("!", "", 40 * YEAR), 3))
        assert [record.key for record in play.records("films-in-order")] == ["I"]
        assert sorted(film.episode for film in play.stored("waiting-films").values()) == ["!", "?", "VI"]


def test_the_time_of_a_film_is_the_time_of_its_story():
    assert [record.timestamp // YEAR for record in shown(star_wars.build)][:7] == [0, 10, 13, 32, 35, 36, 66]


def test_however_often_it_is_told_the_story_is_in_order():
    records = shown(star_wars.build, 2_000)
    assert [record.key for record in records] == (STORY * 300)[: len(records)]
    assert [record.timestamp for record in records] == sorted(record.timestamp for record in records)
    assert len(records) > 1_990
