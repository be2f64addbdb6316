from examples import sessions
from examples.sessions import MINUTE, Session
from headrace import Window, Windowed
from tests.examples.playing import Play, generated


def session(user, first, last):
    return Windowed(user, Window(first * MINUTE, last * MINUTE))


def visit(play, user, page, minute):
    play.pipe("visits", (user, page, minute * MINUTE))


def test_a_session_grows_until_nothing_comes_for_half_an_hour():
    with Play(sessions) as play:
        for page, minute in (("/", 0), ("/cart", 30), ("/", 61)):
            visit(play, "ada", page, minute)
        assert play.table("web-sessions") == {
            session("ada", 0, 30): Session(2, ("/", "/cart")),
            session("ada", 61, 61): Session(1, ("/",)),
        }


def test_a_late_visit_merges_two_sessions():
    #  0        25        50
    #  x                   x      25 minutes later: x between them is within the gap of both
    with Play(sessions) as play:
        visit(play, "ada", "/", 0)
        visit(play, "ada", "/cart", 50)
        visit(play, "bob", "/", 60)
        visit(play, "ada", "/help", 25)
        assert play.pairs("web-sessions") == [
            (session("ada", 0, 0), Session(1, ("/",))),
            (session("ada", 50, 50), Session(1, ("/cart",))),
            (session("bob", 60, 60), Session(1, ("/",))),
            (session("ada", 0, 0), None),
            (session("ada", 50, 50), None),
            (session("ada", 0, 50), Session(3, ("/", "/cart", "/help"))),
        ]
        assert dict(play.store("sessions").fetch("ada")) == {session("ada", 0, 50): Session(3, ("/", "/cart", "/help"))}


def test_a_visit_after_the_grace_is_dropped():
    with Play(sessions) as play:
        visit(play, "bob", "/", 200)
        visit(play, "ada", "/in-time", 110)
        visit(play, "cyd", "/late", 109)
        assert [value.pages for _, value in play.pairs("web-sessions")] == [("/",), ("/in-time",)]
        assert play.dropped == 1


def test_the_table_is_what_one_would_compute_from_all_visits():
    events, visits = generated(sessions), {}
    for event in events:
        visits.setdefault(event.key, []).append((event.timestamp, event.value))
    expected = {}
    for user, of_user in visits.items():
        together = []
        for time, page in sorted(of_user):
            if together and time - together[-1][0] > 30 * MINUTE:
                expected |= closed(user, together)
                together = []
            together.append((time, page))
        expected |= closed(user, together)
    with Play(sessions) as play:
        play.pipe_events(events)
        assert play.table("web-sessions") == expected
        assert play.dropped == 0


def closed(user, visits):
    times, pages = [time for time, _ in visits], {page for _, page in visits}
    return {Windowed(user, Window(min(times), max(times))): Session(len(visits), tuple(sorted(pages)))}
