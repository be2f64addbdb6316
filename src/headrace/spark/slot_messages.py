"""The messages between the driver and the slots, over the connections of `transport`.

    driver ─▶ slot   Start, CheckPeers, Layout, RunBatch, AbortBatch, Committed, DeliverShare, Stop
    slot ─▶ driver   Hello, LocalState, Unreachable, Heartbeat, BatchDone, BatchBroken, AtRecord, ShareDelivered
    slot ─▶ slot     Introduction, Probe, ProbeAnswer, SlotRows

Every message is an array in MessagePack: its name, then its fields. Orders, rows and receipts of tasks are fields that
`wire_format` has encoded; they are not decoded on the way.
"""

from __future__ import annotations

import msgspec

from headrace.model.ids import TaskId
from headrace.runtime.failures import Place


class Message(msgspec.Struct, array_like=True, tag=True):
    """The base of all messages."""


# ------------------------------------------------------------------------------------------------------ driver to slot
class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where another slot is reached."""

    slot: int
    registration: int
    host: str
    port: int


class Start(Message):
    """The answer to `Hello`: the registration, its lease in seconds, the pickled `Job`, and the other slots.

    The slot loads the job, checks that it and the others reach each other, and answers `LocalState` or `Unreachable`.
    """

    registration: int
    lease: float
    job: bytes
    peers: list[Peer]


class CheckPeers(Message):
    """Some of the slots that were named before are gone: the slot checks whether it reaches the slots in `peers`."""

    peers: list[Peer]


class Layout(Message):
    """Which slots there are, and which slot runs which task (sub-topology, partition, slot), from the next batch on.

    `standbys` are the slots that keep copies of a task's state, in the same form; `committed` is the last batch.
    """

    peers: list[Peer]
    places: list[tuple[int, int, int]]
    standbys: list[tuple[int, int, int]]
    committed: int

    def place_tasks(self) -> dict[TaskId, int]:
        """Returns the slot of each task."""
        return {TaskId(stage, partition): slot for stage, partition, slot in self.places}

    def place_standbys(self) -> dict[TaskId, set[int]]:
        """Returns the slots that keep standbys of each task that has any."""
        found: dict[TaskId, set[int]] = {}
        for stage, partition, slot in self.standbys:
            found.setdefault(TaskId(stage, partition), set()).add(slot)
        return found


class RunBatch(Message):
    """Orders for the slot, by level (empty where it has no tasks); `slots` are all that take part in the attempt."""

    attempt: int
    slots: list[int]
    levels: list[bytes]
    is_watched: bool = False  # the slot says `AtRecord` before every call of a node with functions of the user
    suspects: list[tuple[Place, str]] = []  # calls that have ended a process: these records fail, with this reason


class AbortBatch(Message):
    """The attempt is over: nothing of it is committed."""

    attempt: int


class Committed(Message):
    """A batch is committed: standbys may follow it."""

    number: int


class DeliverShare(Message):
    """Has the slot deliver a share of a batch: a `wire_format.ShareOrder` or `wire_format.SinkOrder`."""

    round: int
    order: bytes


class Stop(Message):
    """The slot ends."""


# ------------------------------------------------------------------------------------------------------ slot to driver
class Hello(Message):
    """The first message of a slot: where it is reached, and its process."""

    slot: int
    host: str
    port: int
    process: int


class LocalState(Message):
    """Copies of tasks' state that the slot can use (sub-topology, partition, the last batch in the copy).

    The first one says that the slot is ready to run tasks, and lists the copies that it found on its host. Later ones
    list the standbys that it keeps.
    """

    copies: list[tuple[int, int, int]]


class Unreachable(Message):
    """The slot and the slot of `registration` do not reach each other; `reason` names their addresses."""

    registration: int
    reason: str


class Heartbeat(Message):
    """The slot is alive."""


class BatchDone(Message):
    """The slot has run all levels. `messages` are all results but rows; `levels` are the ms that each level took."""

    attempt: int
    messages: list[bytes]
    levels: list[float]
    waits: list[float]  # ms that each level waited for rows of other slots


class BatchBroken(Message):
    """The slot could not run the attempt, which has to be planned again; `peer` is the slot that it did not reach."""

    attempt: int
    reason: str
    peer: int | None


class AtRecord(Message):
    """The slot is about to call a node with a record. If the slot is lost now, the call is the suspect.

    With a `reason` the slot ends itself, because the call cannot be interrupted.
    """

    attempt: int
    place: Place
    reason: str = ""


class ShareDelivered(Message):
    """A `wire_format.ShareDone`, `SinkDone` or `Failed`; or the `reason` of a failure that can be tried again.

    `summary` is the reason without data of records.
    """

    round: int
    share: int
    answer: bytes
    reason: str
    summary: str


# -------------------------------------------------------------------------------------------------------- slot to slot
class Introduction(Message):
    """The first message on a connection between slots."""

    slot: int
    registration: int


class Probe(Message):
    """Asks another slot to connect to this address, and to say how that went."""

    host: str
    port: int


class ProbeAnswer(Message):
    """The answer to `Probe`: why the connection could not be opened; empty if it was."""

    problem: str


class SlotRows(Message):
    """Rows for tasks of the slot that gets them, by the level of these tasks; see `exchange`."""

    attempt: int
    slot: int
    level: int
    is_end: bool
    rows: list[tuple[int, bytes]]


ToSlot = Start | CheckPeers | Layout | RunBatch | AbortBatch | Committed | DeliverShare | Stop
ToDriver = Hello | LocalState | Unreachable | Heartbeat | BatchDone | BatchBroken | AtRecord | ShareDelivered
ToPeer = Introduction | Probe | ProbeAnswer | SlotRows

encode_message = msgspec.msgpack.Encoder().encode
_for_slot, _for_driver = msgspec.msgpack.Decoder(ToSlot | ToPeer), msgspec.msgpack.Decoder(ToDriver)


def decode_for_slot(frame: bytes | bytearray | memoryview) -> ToSlot | ToPeer:
    """Decodes a message to a slot. Raises ConnectionError for other bytes: their sender is not of this version."""
    try:
        return _for_slot.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectionError(f"{len(frame)} bytes are no message for a slot: {error}") from error


def decode_for_driver(frame: bytes | bytearray | memoryview) -> ToDriver:
    """Decodes a message to the driver. Raises ConnectionError for other bytes.

    >>> decode_for_driver(encode_message(Heartbeat()))
    Heartbeat()
    """
    try:
        return _for_driver.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectionError(f"{len(frame)} bytes are no message for the driver: {error}") from error
