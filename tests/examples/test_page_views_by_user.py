from examples import page_views_by_user
from tests.examples.playing import Play, generated

CHANGES, CHECKS = "views-by-user-changes", "views-by-user-checks"


def test_the_changes_of_the_table_make_the_same_table_again():
    with Play(page_views_by_user) as play:
        play.pipe("page-views", ("ada", "/", 0), ("bob", "/news", 1), ("ada", "/news", 2))
        assert play.pairs(CHANGES) == [("ada", 1), ("bob", 1), ("ada", 2)]
        assert play.stored("views-by-user") == play.stored("views-by-user-again") == {"ada": 2, "bob": 1}


def test_a_user_that_is_deleted_is_gone_from_both_tables():
    with Play(page_views_by_user) as play:
        play.pipe("page-views", ("ada", "/", 0), ("ada", "/forget-me", 1))
        assert play.pairs(CHANGES) == [("ada", 1), ("ada", None)]
        assert play.stored("views-by-user") == play.stored("views-by-user-again") == {}
        play.pipe("page-views", ("ada", "/", 2))
        assert play.stored("views-by-user-again") == {"ada": 1}


def test_a_row_differs_until_its_change_has_gone_round():
    with Play(page_views_by_user) as play:
        play.pipe("page-views", ("ada", "/", 0), ("ada", "/forget-me", 1))
        assert play.pairs(CHECKS) == [("ada", False), ("ada", True), ("ada", False), ("ada", None)]


def test_after_all_views_the_tables_are_equal_row_by_row():
    events, expected = generated(page_views_by_user), {}
    for event in events:
        if event.value == "/forget-me":
            expected.pop(event.key, None)
        else:
            expected[event.key] = expected.get(event.key, 0) + 1
    with Play(page_views_by_user) as play:
        play.pipe_events(events)
        assert play.stored("views-by-user") == play.stored("views-by-user-again") == expected
        assert play.table(CHANGES) == expected
        assert play.table(CHECKS) == dict.fromkeys(expected, True)
