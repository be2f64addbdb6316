"""Schedules: on stream time they follow the records, on the wall clock they follow the clock."""

from datetime import timedelta

import pytest

from headrace import Punctuation, Record, StreamsBuilder, StreamsError, serde
from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.runtime.rows import Inputs, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from tests.runtime.streams import TEXTS, collect, drive, pipe

STREAM, WALL = Punctuation.STREAM_TIME, Punctuation.WALL_CLOCK


def scheduled(interval, punctuation, *, start=None, on_fire=None):
    """A program with one schedule, and the list of the times at which it fired."""
    fired = []

    class Scheduled:
        def init(self, context):
            self.context = context
            self.schedule = context.schedule(interval, punctuation, self.fire, start=start)

        def process(self, record):
            pass

        def fire(self, timestamp):
            fired.append(timestamp)
            if on_fire:
                on_fire(self, timestamp)

    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).process(Scheduled, name="node"))
    return builder, fired, found


def at(*timestamps):
    return [("k", "v", timestamp) for timestamp in timestamps]


# -------------------------------------------------------------------------------------------------------- stream time
def test_on_stream_time_it_fires_at_the_first_record_and_then_on_the_grid():
    #  0    10   20   30   40
    #  |    |    |    |    |
    #    3 ^ first record: fires.   9: nothing.   10, 21: fires.   29: nothing
    builder, fired, _ = scheduled(10, STREAM)
    with drive(builder) as driver:
        pipe(driver, "in", at(3, 9, 10, 21, 29))
    assert fired == [3, 10, 21]


def test_after_a_jump_it_fires_once_with_the_time_of_the_record():
    #  0    10   20   …   100  110
    #   5 ^           ^ 95: one call, not nine.   99: nothing.   100: the grid goes on
    builder, fired, _ = scheduled(10, STREAM)
    with drive(builder) as driver:
        pipe(driver, "in", at(5, 95, 99, 100))
    assert fired == [5, 95, 100]


def test_a_late_record_does_not_make_it_fire():
    builder, fired, _ = scheduled(10, STREAM)
    with drive(builder) as driver:
        pipe(driver, "in", at(50, 20, 30))
    assert fired == [50]


def test_stream_time_is_that_of_the_whole_task():
    builder, fired, _ = scheduled(10, STREAM)
    builder.stream("other", **TEXTS)
    with drive(builder) as driver:
        pipe(driver, "in", at(5))
        pipe(driver, "other", at(25))
    assert fired == [5, 25]


def test_it_fires_after_the_record_that_moved_time_was_processed():
    events = []

    class Log:
        def init(self, context):
            context.schedule(10, STREAM, lambda timestamp: events.append("fire"))

        def process(self, record):
            events.append(record.value)

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Log)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "first", 0), ("k", "second", 10)])
    assert events == ["first", "fire", "second", "fire"]


def test_the_wall_clock_does_not_move_stream_time():
    builder, fired, _ = scheduled(10, STREAM)
    with drive(builder) as driver:
        driver.advance_wall_clock(1000)
    assert fired == []


# --------------------------------------------------------------------------------------------------------- wall clock
def test_on_the_wall_clock_it_fires_an_interval_after_its_start():
    #  0    10   20   30
    #       ^10  ^20      then 29 (nothing) and 30
    builder, fired, _ = scheduled(10, WALL)
    with drive(builder) as driver:
        for step in (9, 1, 10, 9, 1):
            driver.advance_wall_clock(step)
    assert fired == [10, 20, 30]


def test_a_long_advance_of_the_clock_fires_once():
    builder, fired, _ = scheduled(10, WALL)
    with drive(builder) as driver:
        driver.advance_wall_clock(95)
        driver.advance_wall_clock(5)
    assert fired == [95, 100]


def test_records_do_not_make_a_wall_clock_schedule_fire():
    builder, fired, _ = scheduled(10, WALL)
    with drive(builder) as driver:
        pipe(driver, "in", at(1000))
    assert fired == []


def test_the_interval_may_be_a_timedelta():
    builder, fired, _ = scheduled(timedelta(seconds=1), WALL)
    with drive(builder) as driver:
        driver.advance_wall_clock(timedelta(milliseconds=999))
        driver.advance_wall_clock(timedelta(milliseconds=1))
    assert fired == [1000]


# ------------------------------------------------------------------------------------------------------ start, cancel
def test_a_start_puts_the_grid_elsewhere():
    #  0    7    17   27         start 7, every 10
    #    5: nothing.  8: fires.  16: nothing.  17: fires
    builder, fired, _ = scheduled(10, STREAM, start=7)
    with drive(builder) as driver:
        pipe(driver, "in", at(5, 8, 16, 17))
    assert fired == [8, 17]


def test_a_start_on_the_wall_clock_may_lie_ahead():
    builder, fired, _ = scheduled(10, WALL, start=25)
    with drive(builder) as driver:
        for _ in range(5):
            driver.advance_wall_clock(10)
    assert fired == [30, 40, 50]


def test_a_start_that_has_passed_gives_the_next_time_on_its_grid():
    class Late:
        def init(self, context):
            self.context, self.fired = context, fired

        def process(self, record):
            if record.timestamp == 42:
                self.context.schedule(10, STREAM, fired.append, start=5)

    fired = []
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Late)
    with drive(builder) as driver:
        pipe(driver, "in", at(42, 44, 45, 54, 55))
    assert fired == [45, 55]


@pytest.mark.parametrize("punctuation", Punctuation)
def test_a_cancelled_schedule_fires_no_more(punctuation):
    def cancel_at_second(self, timestamp):
        if len(fired) == 2:
            self.schedule.cancel()

    builder, fired, _ = scheduled(10, punctuation, on_fire=cancel_at_second)
    with drive(builder) as driver:
        for time in range(10, 60, 10):
            pipe(driver, "in", at(time))
            driver.advance_wall_clock(10)
    assert len(fired) == 2


def test_a_schedule_may_be_made_and_cancelled_while_records_are_processed():
    fired = []

    class OnDemand:
        def init(self, context):
            self.context, self.running = context, None

        def process(self, record):
            if record.value == "start":
                self.running = self.context.schedule(10, WALL, fired.append)
            elif self.running:
                self.running.cancel()

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(OnDemand)
    with drive(builder) as driver:
        driver.advance_wall_clock(100)
        pipe(driver, "in", [("k", "start")])
        driver.advance_wall_clock(10)
        pipe(driver, "in", [("k", "stop")])
        driver.advance_wall_clock(10)
    assert fired == [110]


def test_a_punctuation_may_schedule_another():
    fired = []

    def start_another(self, timestamp):
        if len(fired_outside) == 1:
            self.context.schedule(5, WALL, fired.append)

    builder, fired_outside, _ = scheduled(10, WALL, on_fire=start_another)
    with drive(builder) as driver:
        for step in (10, 5, 5):
            driver.advance_wall_clock(step)
    assert fired_outside == [10, 20]
    assert fired == [15, 20]


def test_several_schedules_of_a_processor_run_side_by_side():
    fired = []

    class Two:
        def init(self, context):
            context.schedule(10, STREAM, lambda timestamp: fired.append(("ten", timestamp)))
            context.schedule(25, STREAM, lambda timestamp: fired.append(("twenty-five", timestamp)))

        def process(self, record):
            pass

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Two)
    with drive(builder) as driver:
        pipe(driver, "in", at(0, 10, 25))
    assert fired == [("ten", 0), ("twenty-five", 0), ("ten", 10), ("ten", 25), ("twenty-five", 25)]


@pytest.mark.parametrize("interval", [0, -5, timedelta(0), timedelta(microseconds=10)], ids=str)
def test_an_interval_is_at_least_a_millisecond(interval):
    builder, _, _ = scheduled(interval, STREAM)
    with pytest.raises(StreamsError, match="at least 1 ms") as caught:
        drive(builder)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("interval", [1.5, "10", None], ids=repr)
def test_an_interval_is_milliseconds_or_a_timedelta(interval):
    builder, _, _ = scheduled(interval, STREAM)
    with pytest.raises(StreamsError, match="milliseconds as an int or a timedelta"):
        drive(builder)


def test_a_start_before_the_epoch_is_refused():
    builder, _, _ = scheduled(10, STREAM, start=-1)
    with pytest.raises(StreamsError, match="before the epoch"):
        drive(builder)


# ------------------------------------------------------------------------------------------------------- inside of one
def test_a_punctuation_has_no_record_metadata_and_the_record_has_it_again_afterwards():
    told = []

    class Ask:
        def init(self, context):
            self.context = context
            context.schedule(10, STREAM, lambda timestamp: told.append(context.record_metadata))

        def process(self, record):
            told.append(self.context.record_metadata.offset)

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Ask)
    with drive(builder) as driver:
        pipe(driver, "in", at(0, 10))
    assert told == [0, None, 1, None]


def test_what_a_punctuation_forwards_goes_through_the_rest_of_the_program():
    def tell(self, timestamp):
        self.context.forward(Record("tick", "at", timestamp))

    builder, _, found = scheduled(10, WALL, on_fire=tell)
    with drive(builder) as driver:
        driver.advance_wall_clock(10)
    assert [(record.key, record.timestamp, record.headers) for record in found] == [("tick", 10, ())]


def test_a_schedule_made_while_records_are_processed_begins_again_after_a_restart():
    fired: list[int] = []

    class Waits:
        def init(self, context):
            self.context = context

        def process(self, record):
            self.context.schedule(100, Punctuation.STREAM_TIME, fired.append, start=record.timestamp + 100)

    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.STRING).process(Waits)
    graph, engine = builder.build().graph(), MemoryEngine()

    def run(number: int, timestamp: int) -> None:
        around = TaskEnvironment(Config.of({"application.id": "a"}), {})
        task = Task(TaskId(0, 0), graph, list(graph.nodes), engine, around, clock=0)
        rows = batch_rows([("in", 0, number, b"k", b"v", timestamp, (), (number,))])
        task.run(Inputs(received=rows), clock=0, version=Version(number, "t"))

    run(1, 0)  # due at 100
    run(2, 1000)  # after a restart: the schedule of before is gone, this one is due at 1100
    assert fired == []
