"""Log levels: errors go to a topic that somebody watches, all the rest to one for later.

Each line is looked at on its own and no state is kept. This is the simplest pattern of stream processing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "log-levels"
LOGS, HIGH_PRIORITY, LOW_PRIORITY = "logs", "logs-high-priority", "logs-low-priority"


@dataclass(frozen=True)
class LogLine:
    level: str
    message: str


LINE = serde.json_of(LogLine)
TOPICS: Topics = {LOGS: (serde.STRING, LINE)}
OUTPUTS: Topics = {HIGH_PRIORITY: (serde.STRING, LINE), LOW_PRIORITY: (serde.STRING, LINE)}


def is_error(line: LogLine) -> bool:
    return line.level == "ERROR"


def build() -> Topology:
    builder = StreamsBuilder()
    logs = builder.stream(LOGS, key=serde.STRING, value=LINE)
    branches = logs.split(name="priority-").branch(is_error, name="high").default_branch(name="low")
    branches["priority-high"].to(HIGH_PRIORITY, key=serde.STRING, value=LINE)
    branches["priority-low"].to(LOW_PRIORITY, key=serde.STRING, value=LINE)
    return builder.build()


SERVICES = ("checkout", "search", "login")
MESSAGES = {
    "DEBUG": "cache looked at",
    "INFO": "request served",
    "WARN": "request took long",
    "ERROR": "request failed",
}


def events(random: Random) -> Iterator[Event]:
    """Lines of three services; one in twenty is an error."""
    now = START
    while True:
        [level] = random.choices(list(MESSAGES), weights=(6, 10, 3, 1))
        yield Event(LOGS, random.choice(SERVICES), LogLine(level, MESSAGES[level]), now)
        now += random.randint(1, 20)
