from examples import account
from examples.account import CANCELLATION, DEPOSIT, SPENDING, Account, Entry
from tests.examples.playing import Play, generated

SALARY, RENT = Entry("e1", DEPOSIT, 100), Entry("e2", SPENDING, 80)


def book(*entries):
    """The account after these entries, in this order."""
    with Play(account) as play:
        play.pipe("account-entries", *(("a", entry, time) for time, entry in enumerate(entries)))
        return play.stored("accounts")["a"]


def test_deposits_and_spendings_add_up():
    assert book(SALARY, RENT) == Account(20, 0, {"e1": 100, "e2": -80})


def test_the_order_decides_the_overdraft_fee():
    assert book(RENT, SALARY) == Account(-5, 25, {"e2": -80, "e1": 100})


def test_the_order_is_that_of_the_log_not_of_the_timestamps():
    with Play(account) as play:
        play.pipe("account-entries", ("a", RENT, 2_000), ("a", SALARY, 1_000))
        assert [state.fees for _, state in play.pairs("accounts")] == [25, 25]


def test_each_spending_without_cover_costs_the_fee():
    assert book(RENT, Entry("e3", SPENDING, 1)).fees == 50


def test_a_cancellation_gives_the_money_back_but_not_the_fee():
    assert book(RENT, Entry("e3", CANCELLATION, cancels="e2")) == Account(-25, 25, {})


def test_a_deposit_that_is_cancelled_takes_the_cover_away_from_later_spendings():
    cancelled = Entry("e3", CANCELLATION, cancels="e1")
    assert book(SALARY, cancelled, RENT).fees == 25
    assert book(SALARY, RENT, cancelled).fees == 0


def test_a_second_cancellation_of_the_same_entry_changes_nothing():
    cancelled = Entry("e3", CANCELLATION, cancels="e1")
    assert book(SALARY, cancelled, cancelled) == Account(0, 0, {})


def test_an_entry_can_be_cancelled_while_it_is_among_the_last_twenty():
    others = [Entry(f"o{n}", DEPOSIT, 1) for n in range(20)]
    cancelled = Entry("e3", CANCELLATION, cancels="e1")
    assert book(SALARY, *others[:19], cancelled).balance == 19
    assert book(SALARY, *others, cancelled).balance == 120


def test_the_balance_is_what_was_not_cancelled_less_the_fees():
    events = generated(account)
    cancelled = {(event.key, event.value.cancels) for event in events}
    with Play(account) as play:
        play.pipe_events(events)
        accounts = play.stored("accounts")
        assert play.table("accounts") == accounts
    for number, state in accounts.items():
        booked = {
            event.value.id: event.value.amount if event.value.kind == DEPOSIT else -event.value.amount
            for event in events
            if event.key == number and event.value.kind != CANCELLATION and (number, event.value.id) not in cancelled
        }
        assert list(booked.items())[-10:] == list(state.amounts.items())[-10:]
        assert state.balance == sum(booked.values()) - state.fees
