"""Which slots there are: their registrations, their leases, and the Spark jobs that they live in.

A slot is a number. Its process registers with the driver, under a registration number that no other process has, and
keeps a lease alive by heartbeats. A slot that registers again replaces its predecessor.

    wanted ──submit──▶ submitted ──register──▶ starting ──ready──▶ live ──lost, expired──▶ submitted
                           ▲                                                                   │
                           └──────────── backoff ◀──── job ended ◀──── Spark may run its task again

`SlotRegistry` is a state machine: it starts no jobs, opens no sockets, and is told what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 10.0  # seconds between the end of a slot's job and the next one
MAX_UNREACHED = 2  # attempts in a row in which a slot may not reach another one
STABLE = 60.0  # seconds after which a slot's earlier losses no longer count


class Registration(NamedTuple):
    """A process that serves a slot, and where other slots reach it."""

    slot: int
    number: int
    host: str
    port: int
    process: int


@dataclass(slots=True)
class _Slot:
    is_wanted: bool = True
    has_job: bool = False
    registration: Registration | None = None
    is_ready: bool = False
    registered_at: float = 0.0
    heard_at: float = 0.0
    losses: int = 0  # in a row
    submit_at: float = 0.0
    unserved_since: float = 0.0  # when its job was submitted, or its process was lost


class SlotRegistry:
    """The slots of an application. Times are seconds of any clock that never goes back.

    >>> registry = SlotRegistry(lease=10.0)
    >>> registry.want(1)
    >>> registry.to_submit(now=0.0)
    [0]
    >>> registry.register(0, "host", 7001, process=5, now=1.0)
    Registration(slot=0, number=1, host='host', port=7001, process=5)
    >>> registry.live
    {}
    >>> registry.make_ready(1)
    >>> list(registry.live)
    [0]
    >>> registry.expired(now=12.0)
    [Registration(slot=0, number=1, host='host', port=7001, process=5)]
    """

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._slots: dict[int, _Slot] = {}
        self._last_number = 0
        self._failures: dict[
            frozenset[int], set[int]
        ] = {}  # by pair of slots: attempts in which they did not reach each other

    # --------------------------------------------------------------------------------------------------- what is wanted
    def want(self, count: int) -> None:
        """Sets the number of slots. If there are more, the slots with the highest numbers are no longer wanted."""
        for slot in range(count):
            self._slots.setdefault(slot, _Slot()).is_wanted = True
        for slot, state in self._slots.items():
            if slot >= count:
                state.is_wanted = False

    def to_submit(self, now: float) -> list[int]:
        """Returns the slots whose job has to be submitted now; they count as submitted from then on."""
        due = [
            s for s, state in self._slots.items() if state.is_wanted and not state.has_job and now >= state.submit_at
        ]
        for slot in due:
            self._slots[slot].has_job, self._slots[slot].unserved_since = True, now
        return due

    # ----------------------------------------------------------------------------------------------------- what happens
    def register(self, slot: int, host: str, port: int, process: int, now: float) -> Registration | None:
        """Registers the process that serves a slot from now on; None if the slot is not wanted, and it has to end."""
        state = self._slots.get(slot)
        if state is None or not state.is_wanted:
            return None
        self._last_number += 1
        state.registration = Registration(slot, self._last_number, host, port, process)
        state.registered_at = state.heard_at = now
        state.is_ready = False
        self._forget_failures(slot)
        return state.registration

    def make_ready(self, number: int) -> None:
        """Marks a registration as ready: its process has loaded the application, and can run tasks."""
        for state in self._slots.values():
            if _has(state, number):
                state.is_ready = True

    def heard(self, number: int, now: float) -> None:
        """Renews the lease of a registration, at a heartbeat or any other message; ignores replaced registrations."""
        for state in self._slots.values():
            if _has(state, number):
                state.heard_at = now

    def extend_leases(self, seconds: float) -> None:
        """Adds the time that the driver stood still: it has not read the heartbeats that have arrived meanwhile."""
        for state in self._slots.values():
            state.heard_at += seconds

    def lose(self, number: int, now: float) -> Registration | None:
        """Removes and returns a registration whose process is gone or counts as gone; None if it was replaced."""
        for state in self._slots.values():
            registration = state.registration
            if registration is not None and registration.number == number:
                state.losses = 1 if now - state.registered_at > STABLE else state.losses + 1
                state.registration, state.unserved_since = None, now
                return registration
        return None

    def expired(self, now: float) -> list[Registration]:
        """The registrations that were not heard of for longer than the lease."""
        live = [(state, state.registration) for state in self._slots.values() if state.registration is not None]
        return [registration for state, registration in live if now - state.heard_at > self.lease]

    def end_job(self, slot: int, now: float) -> None:
        """Records that the Spark job of a slot has ended. A slot that is still wanted is due again after a backoff."""
        state = self._slots[slot]
        state.has_job, state.registration = False, None
        backoff = min(FIRST_BACKOFF * 2**state.losses, LONGEST_BACKOFF) if state.losses else FIRST_BACKOFF
        state.submit_at = now + backoff
        if not state.is_wanted:
            del self._slots[slot]

    # -------------------------------------------------------------------------------------------- slots out of reach
    def fail_to_reach(self, number: int, peer: int, attempt: int) -> Registration | None:
        """Records that a registration could not reach another slot in an attempt. Returns the slot to replace, if any.

        After two such attempts in a row one of the two is replaced: the slot that is cut off from more slots or, if
        they are equal, the slot that was not reached.
        """
        reporter = next((slot for slot, state in self._slots.items() if _has(state, number)), None)
        other = self.registered(peer)
        if reporter is None or other is None:
            return None
        pair = frozenset((reporter, peer))
        self._failures.setdefault(pair, set()).add(attempt)
        if len(self._failures[pair]) < MAX_UNREACHED:
            return None
        cut_off = {slot: sum(slot in some for some in self._failures) for slot in pair}
        worst = reporter if cut_off[reporter] > cut_off[peer] else peer
        self._forget_failures(worst)
        return self.registered(worst)

    def _forget_failures(self, slot: int) -> None:
        self._failures = {pair: attempts for pair, attempts in self._failures.items() if slot not in pair}

    def reach_all(self) -> None:
        """Forgets all failures: a batch has run in all slots, so they reach each other."""
        self._failures.clear()

    # ---------------------------------------------------------------------------------------------------- what there is
    @property
    def live(self) -> dict[int, Registration]:
        """The slots that are wanted, and ready to run tasks."""
        return {
            slot: state.registration
            for slot, state in sorted(self._slots.items())
            if state.registration is not None and state.is_ready and state.is_wanted
        }

    def registered(self, slot: int) -> Registration | None:
        """The process that serves a slot, whether it is ready or not."""
        state = self._slots.get(slot)
        return None if state is None else state.registration

    @property
    def unwanted(self) -> list[Registration]:
        """Registered slots that have to be stopped."""
        return [s.registration for s in self._slots.values() if s.registration is not None and not s.is_wanted]

    @property
    def waiting(self) -> list[int]:
        """Wanted slots that no process serves yet, or whose process is not ready."""
        return [
            slot
            for slot, state in self._slots.items()
            if state.is_wanted and (state.registration is None or not state.is_ready)
        ]

    def unserved(self, since: float) -> list[int]:
        """Wanted slots that have a job, but had no process all the time since `since`."""
        return [
            slot
            for slot, state in self._slots.items()
            if state.is_wanted and state.has_job and state.registration is None and state.unserved_since <= since
        ]

    def losses(self, slot: int) -> int:
        """How often in a row a slot was lost."""
        return self._slots[slot].losses if slot in self._slots else 0


def _has(state: _Slot, number: int) -> bool:
    return state.registration is not None and state.registration.number == number
