"""Star Wars: event time against processing time.

Seven episodes were shown in this order: IV, V, VI, I, II, III, VII. The time at which a film came out is when we get
to process it; the time at which its story takes place is its event time. The program reads the films with one or the
other as their time, and hands them on in the order of that time: it keeps each back until no earlier one is expected.

A year is a second here, and counts from the first: of the cinema from 1977, of the story from episode I.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import Event, Topics
from headrace import ProcessorContext, Record, Stores, StreamsBuilder, Topology, serde, timestamps

APPLICATION = "star-wars"
FILMS, IN_ORDER, WAITING = "films", "films-in-order", "waiting-films"
YEAR = 1_000
PATIENCE = 40 * YEAR  # episode I was told 36 years of the story after its time


@dataclass(frozen=True)
class Film:
    episode: str
    title: str
    story: int


RELEASED = {
    0: Film("IV", "A New Hope", 32 * YEAR),
    3: Film("V", "The Empire Strikes Back", 35 * YEAR),
    6: Film("VI", "Return of the Jedi", 36 * YEAR),
    22: Film("I", "The Phantom Menace", 0 * YEAR),
    25: Film("II", "Attack of the Clones", 10 * YEAR),
    28: Film("III", "Revenge of the Sith", 13 * YEAR),
    38: Film("VII", "The Force Awakens", 66 * YEAR),
}
AGAIN = 120 * YEAR  # later, all is told once more

FILM = serde.json_of(Film)
TOPICS: Topics = {FILMS: (serde.STRING, FILM)}
OUTPUTS: Topics = {IN_ORDER: (serde.STRING, FILM)}


class InOrder:
    """Hands records on by their time, when stream time is so far ahead that no earlier one is expected."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.waiting = context, context.store(WAITING)

    def process(self, record: Record) -> None:
        self.waiting.put(record.timestamp, record.value)
        before = self.context.stream_time - PATIENCE
        if before >= 0:  # keys are ordered by their bytes, negative ones last
            for time, film in list(self.waiting.range(0, before)):
                self.context.forward(Record(film.episode, film, time))
                self.waiting.delete(time)


def build() -> Topology:
    """By event time: the story, from episode I to VII."""
    return program_by(timestamps.field("story"))


def build_by_release() -> Topology:
    """By processing time: the episodes as they came out."""
    return program_by(timestamps.RECORD)


def program_by(timestamp: timestamps.Extractor) -> Topology:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value(WAITING, key=serde.LONG, value=FILM))
    films = builder.stream(FILMS, key=serde.STRING, value=FILM, timestamp=timestamp)
    films.process(InOrder, WAITING).to(IN_ORDER, key=serde.STRING, value=FILM)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """The seven films as they came out, again and again; nothing here is left to chance."""
    begin = 0
    while True:
        for year, film in RELEASED.items():
            told = Film(film.episode, film.title, begin + film.story)
            yield Event(FILMS, "saga", told, begin + year * YEAR)
        begin += AGAIN
