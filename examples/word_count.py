"""Word count: how often does each word occur in the lines of a topic?

`build` is the classic: lower case, split on non-word characters, the word becomes the key, "the" is left out, and the
count is written as a string. `build_quick_start` is the program of Kafka's own quick start, with its names; it writes
the count as a long.
"""

import re
from collections.abc import Iterator
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "wordcount"
INPUT, OUTPUT, STORE = "wordcount-input", "wordcount-output", "CountStore"
TOPICS: Topics = {INPUT: (serde.STRING, serde.STRING)}
OUTPUTS: Topics = {OUTPUT: (serde.STRING, serde.STRING)}

QUICK_START_APPLICATION = "streams-wordcount"
QUICK_START_INPUT, QUICK_START_OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
QUICK_START_STORE = "counts-store"

WORD = re.compile(r"\w+")


def words_of(line: str) -> list[str]:
    return WORD.findall(line.lower())


def is_not_the(word: str) -> bool:
    return word != "the"


def word_as_key(_key: str | None, word: str) -> tuple[str, str]:
    return word, word


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(INPUT, key=serde.STRING, value=serde.STRING)
        .flat_map_values(words_of)
        .map(word_as_key)
        .filter(is_not_the)
        .group_by_key(key=serde.STRING, value=serde.STRING)
        .count(store=STORE)
        .map_values(str)
        .to_stream()
        .to(OUTPUT, key=serde.STRING, value=serde.STRING)
    )
    return builder.build()


def build_quick_start() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(QUICK_START_INPUT, key=serde.STRING, value=serde.STRING)
        .flat_map_values(words_of)
        .group_by(lambda word: word, key=serde.STRING, value=serde.STRING)
        .count(store=QUICK_START_STORE)
        .to_stream()
        .to(QUICK_START_OUTPUT, key=serde.STRING, value=serde.LONG)
    )
    return builder.build()


VOCABULARY = ("The", "the", "stream", "table", "log", "window", "of", "and", "a", "is,", "joins;", "reads.", "Kafka's")


def events(random: Random) -> Iterator[Event]:
    """Lines of three to eight words, one every 100 ms."""
    now = START
    while True:
        line = " ".join(random.choice(VOCABULARY) for _ in range(random.randint(3, 8)))
        yield Event(INPUT, None, line, now)
        now += 100
