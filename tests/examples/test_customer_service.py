from examples import customer_service
from examples.customer_service import Charge, Guest, Receipt, Reservation
from tests.examples.playing import Play, generated, of_topic

STAY = Reservation(7, "Bellevue", 3, 120, "4242")


def test_one_reservation_becomes_a_confirmation_a_charge_and_a_receipt():
    with Play(customer_service) as play:
        play.pipe("reservations", ("Ada", STAY, 5))
        assert play.pairs("confirmations") == [("Ada", "Dear Ada, Bellevue expects you for 3 nights (no. 7).")]
        assert play.pairs("card-charges") == [("Ada", Charge("4242", 360))]
        assert play.pairs("receipts") == [("Ada", Receipt(7, 360))]


def test_the_desk_sees_the_guest_at_once():
    with Play(customer_service) as play:
        play.pipe("reservations", ("Ada", STAY, 5))
        assert play.store("desk").get("Ada") == (Guest((7,), 360, "Bellevue"), 5)
        play.pipe("calls", ("Ada", "arrives late", 6), ("Bob", "wants an invoice", 7))
        play.pipe("reservations", ("Ada", Reservation(9, "Miramar", 1, 100, "4242"), 8))
        assert play.stored("desk") == {
            "Ada": Guest((7, 9), 460, "Miramar", 1, "arrives late"),
            "Bob": Guest((), 0, "", 1, "wants an invoice"),
        }
        assert [guest.calls for name, guest in play.pairs("guests") if name == "Ada"] == [0, 1, 1]


def test_the_table_is_what_one_would_compute_from_all_events():
    events = generated(customer_service)
    stays, calls = of_topic(events, "reservations"), of_topic(events, "calls")
    expected = {}
    for name in {event.key for event in events}:
        booked = [event.value for event in stays if event.key == name]
        called = [event.value for event in calls if event.key == name]
        spent = sum(stay.nights * stay.price for stay in booked)
        expected[name] = Guest(
            tuple(stay.number for stay in booked[-5:]),
            spent,
            booked[-1].hotel if booked else "",
            len(called),
            called[-1] if called else "",
        )
    with Play(customer_service) as play:
        play.pipe_events(events)
        assert play.stored("desk") == expected
        assert play.table("guests") == expected
        assert sum(charge.amount for _, charge in play.pairs("card-charges")) == sum(g.spent for g in expected.values())
        assert len(play.pairs("confirmations")) == len(play.pairs("receipts")) == len(stays)
