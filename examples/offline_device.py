"""Offline device: a device was out of reach for hours, comes back, and sends all that it has measured meanwhile.

Every device has a time of its own: the latest that it has reported. A window of a device is open until that time has
passed its end and the grace. So a backlog, sent in its order, is not late at all, however far ahead the others are;
nor does it hold the results of the others back. Three topics come of it: `device-updates` with every change of a
window, `device-results` with one final result per window, and `device-too-late`, the ledger of what came after that.

`build_with_one_clock` is the same in the DSL, where all devices of a partition share one time. There a backlog is late
because of what *others* report, and final results of all devices wait as long as anyone may be offline.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import (
    Buffer,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    Window,
    Windowed,
    serde,
)

APPLICATION = "offline-device"
REPORTS, UPDATES, RESULTS, TOO_LATE = "device-reports", "device-updates", "device-results", "device-too-late"
MINUTE, HOUR = 60_000, 3_600_000
SIZE, GRACE = 10 * MINUTE, 2 * MINUTE
LONGEST_OFFLINE = 6 * HOUR


@dataclass(frozen=True)
class Measured:
    reports: int = 0
    highest: int = 0


MEASURED = serde.json_of(Measured)
DEVICE_WINDOW = serde.windowed(serde.STRING, SIZE)
TOPICS: Topics = {REPORTS: (serde.STRING, serde.LONG)}
OUTPUTS: Topics = {
    UPDATES: (DEVICE_WINDOW, MEASURED),
    RESULTS: (DEVICE_WINDOW, MEASURED),
    TOO_LATE: (serde.STRING, serde.LONG),
}


def add_report(_device: str, degrees: int, so_far: Measured) -> Measured:
    return Measured(so_far.reports + 1, max(so_far.highest, degrees))


class WindowsOfDevices:
    """Windows that close by the time of their own device; a window store would forget them by the time of all."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.times, self.open = context.store("times"), context.store("open-windows")

    def process(self, record: Record) -> None:
        device, start = record.key, record.timestamp - record.timestamp % SIZE
        before = self.times.get(device) or 0
        now = max(before, record.timestamp)
        if start + SIZE + GRACE <= now:
            self.context.forward(record, to="too-late")
            return
        window = Windowed(device, Window(start, start + SIZE))
        measured = add_report(device, record.value, self.open.get(window) or Measured())
        self.open.put(window, measured)
        self.context.forward(record.with_key(window).with_value(measured), to="updates")
        if now > before:
            self.times.put(device, now)
            self.close_windows(device, now)

    def close_windows(self, device: str, now: int) -> None:
        for window, measured in list(self.open.prefix_scan(device, serde.STRING)):
            end = window.window.end
            if window.key == device and end + GRACE <= now:
                self.open.delete(window)
                self.context.forward(Record(window, measured, end - 1), to="results")


def build() -> Topology:
    return (
        Topology()
        .add_source("reports", REPORTS, key=serde.STRING, value=serde.LONG)
        .add_processor("windows", WindowsOfDevices, "reports")
        .add_store(Stores.key_value("times", key=serde.STRING, value=serde.LONG), "windows")
        .add_store(Stores.key_value("open-windows", key=DEVICE_WINDOW, value=MEASURED), "windows")
        .add_sink("updates", UPDATES, "windows", key=DEVICE_WINDOW, value=MEASURED)
        .add_sink("results", RESULTS, "windows", key=DEVICE_WINDOW, value=MEASURED)
        .add_sink("too-late", TOO_LATE, "windows", key=serde.STRING, value=serde.LONG)
    )


def build_with_one_clock(grace: int = LONGEST_OFFLINE) -> Topology:
    builder = StreamsBuilder()
    measured = (
        builder.stream(REPORTS, key=serde.STRING, value=serde.LONG)
        .group_by_key()
        .windowed_by(TimeWindows.of(SIZE, grace=grace))
        .aggregate(Measured, add_report, store="measured", value=MEASURED)
    )
    measured.to_stream().to(UPDATES)
    measured.suppress(Suppressed.until_window_closes(Buffer.unbounded())).to_stream().to(RESULTS)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Five devices report every minute; one of them is offline for one to four hours, then sends its backlog.

    One in three is impatient and sends the latest report first: then all that is older than the grace is too late.
    """
    devices = [f"device-{n}" for n in range(1, 6)]
    offline, back_at, backlog, now = devices[0], START + HOUR, list[Event](), START
    while True:
        for device in devices:
            event = Event(REPORTS, device, random.randint(15, 30), now + random.randint(0, MINUTE - 1))
            if device == offline:
                backlog.append(event)
            else:
                yield event
        now += MINUTE
        if now >= back_at:
            yield from backlog if random.random() < 2 / 3 else reversed(backlog)
            offline, back_at, backlog = random.choice(devices), now + random.randint(1 * HOUR, 4 * HOUR), []
