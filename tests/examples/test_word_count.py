from collections import Counter

from examples import word_count
from headrace import serde
from headrace.testing import TopologyTestDriver
from tests.examples.playing import Play, generated


def test_words_are_counted_without_the_and_the_count_is_a_string():
    with Play(word_count) as play:
        play.pipe("wordcount-input", (None, "The quick fox; the LAZY dog.", 0), (None, "Quick, quick!", 1))
        assert play.pairs("wordcount-output") == [
            ("quick", "1"), ("fox", "1"), ("lazy", "1"), ("dog", "1"), ("quick", "2"), ("quick", "3"),
        ]  # fmt: skip
        assert play.stored("CountStore") == {"quick": 3, "fox": 1, "lazy": 1, "dog": 1}


def test_the_quick_start_counts_every_word_and_writes_longs():
    with TopologyTestDriver(word_count.build_quick_start()) as driver:
        lines = driver.input_topic("streams-plaintext-input", serde.STRING, serde.STRING)
        counts = driver.output_topic("streams-wordcount-output", serde.STRING, serde.LONG)
        lines.pipe("all streams lead to the Kafka", timestamp=0)
        lines.pipe("hello kafka streams", timestamp=1)
        assert counts.read_table() == {
            "all": 1, "streams": 2, "lead": 1, "to": 1, "the": 1, "kafka": 2, "hello": 1,
        }  # fmt: skip
        assert driver.store("counts-store").get("kafka") == (2, 1)


def test_the_table_is_what_a_counter_would_count():
    events = generated(word_count)
    words = (word for event in events for word in event.value.replace("'", " ").split())
    counts = Counter(word.strip(",;.").lower() for word in words)
    with Play(word_count) as play:
        play.pipe_events(events)
        assert play.table("wordcount-output") == {word: str(n) for word, n in counts.items() if word != "the"}
