"""What holds for every example: what a reader, a test on Spark and `headrace demo` count on."""

import pickle
from importlib import import_module
from pathlib import Path

import pytest

from headrace import Topology
from headrace.topology.nodes import Sink, Source
from tests.examples.playing import Play, generated

FOLDER = Path(__file__).parent.parent.parent / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "events")
PROGRAMS = [
    (name, build) for name in NAMES for build in vars(import_module(f"examples.{name}")) if build.startswith("build")
]
EXAMPLES = pytest.mark.parametrize("example", [import_module(f"examples.{name}") for name in NAMES], ids=NAMES)


@EXAMPLES
def test_it_is_one_short_file_that_says_what_it_does(example):
    text = (FOLDER / f"{example.__name__.rpartition('.')[2]}.py").read_text(encoding="utf-8")
    assert 40 <= len(text.splitlines()) <= 150
    assert example.__doc__
    assert example.APPLICATION


@EXAMPLES
def test_the_generator_is_endless_and_the_same_for_the_same_seed(example):
    first = generated(example, 500)
    assert len(first) == 500
    assert generated(example, 500) == first


@EXAMPLES
def test_generated_keys_and_values_come_back_from_bytes_as_they_went(example):
    for event in generated(example, 500):
        for what, serde in zip((event.key, event.value), example.TOPICS[event.topic], strict=True):
            assert what is None or serde.decode(serde.encode(what)) == what


@EXAMPLES
def test_every_input_topic_gets_events(example):
    assert {event.topic for event in generated(example, 500)} == set(example.TOPICS)


@EXAMPLES
def test_its_serdes_travel_to_other_processes(example):
    there = pickle.loads(pickle.dumps((example.TOPICS, example.OUTPUTS)))[0]
    for event in generated(example, 50):
        for what, mine, theirs in zip(event[1:3], example.TOPICS[event.topic], there[event.topic], strict=True):
            assert what is None or theirs.decode(mine.encode(what)) == what


@EXAMPLES
def test_it_reads_and_writes_the_topics_that_it_names(example):
    nodes = example.build().graph().nodes.values()
    read = {topic for node in nodes if isinstance(node, Source) for topic in node.topics}
    written = {node.topic for node in nodes if isinstance(node, Sink)}
    assert set(example.TOPICS) <= read
    assert read - set(example.TOPICS) <= written  # its own, and those of the library
    assert set(example.OUTPUTS) & written


@EXAMPLES
def test_nothing_of_what_is_generated_is_dropped(example):
    with Play(example) as play:
        play.pipe_events(generated(example, 300))
        assert play.dropped == 0
        assert play.produced_topics & set(example.OUTPUTS)


@pytest.mark.parametrize("name, build", PROGRAMS, ids=lambda text: text)
def test_every_program_builds_again_and_again(name, build):
    make = getattr(import_module(f"examples.{name}"), build)
    assert isinstance(make(), Topology)
    assert str(make().describe()) == str(make().describe())
