from examples import fraud_detection
from examples.events import START
from examples.fraud_detection import Alert, Rule, Transaction
from tests.examples.playing import Play, generated


def pay(play, card, *amounts_at, kind="standard"):
    """Pays amounts at times since the start."""
    for amount, time in amounts_at:
        play.pipe("card-transactions", (card, Transaction(kind, amount, START + time), 0))


def watched(most_transactions=3, highest_amount=1_000):
    play = Play(fraud_detection)
    play.pipe("fraud-rules", ("standard", Rule(most_transactions, highest_amount), 0))
    return play


def test_more_transactions_within_a_minute_than_the_rule_allows():
    with watched() as play:
        pay(play, "c1", (1, 0), (1, 30_000), (1, 60_000), (1, 60_001))
        assert play.pairs("fraud-alerts") == []
        pay(play, "c1", (1, 90_000))  # the fourth since 30,000
        assert play.pairs("fraud-alerts") == [("c1", Alert(("too many",), 4, 4, START + 90_000))]


def test_a_higher_amount_within_a_minute_than_the_rule_allows():
    with watched() as play:
        pay(play, "c1", (600, 0), (400, 1_000))
        pay(play, "c2", (1_000, 0))
        assert play.pairs("fraud-alerts") == []
        pay(play, "c1", (1, 60_000))
        assert play.pairs("fraud-alerts") == [("c1", Alert(("too much",), 3, 1_001, START + 60_000))]


def test_both_at_once():
    with watched() as play:
        pay(play, "c1", (300, 0), (300, 1), (300, 2), (300, 3))
        assert play.pairs("fraud-alerts") == [("c1", Alert(("too many", "too much"), 4, 1_200, START + 3))]


def test_a_rule_that_changes_holds_from_the_next_transaction_on():
    with watched() as play:
        pay(play, "c1", (1, 0), (1, 1))
        play.pipe("fraud-rules", ("standard", Rule(2, 1_000), 0))
        pay(play, "c1", (1, 2))
        play.pipe("fraud-rules", ("standard", Rule(9, 1_000), 0))
        pay(play, "c1", (1, 3))
        assert [alert.time for _, alert in play.pairs("fraud-alerts")] == [START + 2]


def test_each_kind_of_card_has_its_rule_and_one_without_a_rule_raises_no_alert():
    with watched() as play:
        play.pipe("fraud-rules", ("gold", Rule(1, 1_000), 0))
        for kind in ("standard", "gold", "black"):
            pay(play, f"{kind}-card", (1, 0), (1, 1), kind=kind)
        assert [card for card, _ in play.pairs("fraud-alerts")] == ["gold-card"]


def test_the_alerts_are_what_one_would_compute_from_all_transactions():
    events, rules, seen, expected = generated(fraud_detection), {}, {}, []
    for event in events:
        if event.topic == "fraud-rules":
            rules[event.key] = event.value
            continue
        seen.setdefault(event.key, []).append(event.value)
        now, rule = event.value.time, rules[event.value.kind]
        amounts = [paid.amount for paid in seen[event.key] if now - 60_000 <= paid.time]
        reasons = ["too many"] * (len(amounts) > rule.most_transactions)
        reasons += ["too much"] * (sum(amounts) > rule.highest_amount)
        if reasons:
            expected.append((event.key, Alert(tuple(reasons), len(amounts), sum(amounts), now)))
    with Play(fraud_detection) as play:
        play.pipe_events(events)
        assert play.pairs("fraud-alerts") == expected
        assert len(expected) > 100
