"""A Java name, a misspelt name or an option that does not exist gets an error that says what to write."""
# pyright: reportCallIssue=false, reportArgumentType=false

from datetime import timedelta

import pytest

from headrace import (
    Admin,
    Application,
    Consumer,
    KeyQuery,
    Producer,
    Punctuation,
    RangeQuery,
    StreamsBuilder,
    Topology,
    serde,
)
from headrace.query.client import Client
from headrace.testing import TopologyTestDriver


def topology():
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()


def application(**options):
    return Application("app", topology(), **{"log": "file:./data", **options})


@pytest.fixture
def log(tmp_path):
    with Admin(f"file:{tmp_path}") as admin:
        admin.create_topic("words")
    return f"file:{tmp_path}"


NAMES = [
    (application, "allMetadata", "metadata_for_key(store, key)"),
    (application, "metadataForAllStreamsClients", "report()"),
    (application, "queryMetadataForKey", "metadata_for_key(store, key)"),
    (application, "get_state_store", "store(name)"),
    (application, "cleanUp", "clean_up"),
    (application, "isPaused", "is_paused"),
    (application, "setStateListener", "on_state_change(listener)"),
    (application, "setUncaughtExceptionHandler", "run()"),
    (application, "addStreamThread", "master="),
    (Topology, "add_state_store", "add_store(spec, *processors)"),
    (Topology, "addStateStore", "add_store(spec, *processors)"),
    (Topology, "addSource", "add_source"),
    (Topology, "connectProcessorAndStateStores", "connect(processor, *stores)"),
    (Topology, "stream", "StreamsBuilder().stream(topic)"),
    (lambda: TopologyTestDriver(topology()), "get_state_store", "store(name)"),
    (lambda: TopologyTestDriver(topology()), "pipe_input", "input_topic(topic, key=, value=).pipe(key, value)"),
    (lambda: TopologyTestDriver(topology()).input_topic("in"), "pipeInput", "pipe(value) or pipe(key, value)"),
    (lambda: TopologyTestDriver(topology()).output_topic("out"), "getQueueSize", "size"),
    (lambda: TopologyTestDriver(topology()).output_topic("out"), "isEmpty", "is_empty"),
    (lambda: Punctuation, "WALL_CLOCK_TIME", "Punctuation.WALL_CLOCK"),
    (lambda: KeyQuery, "withKey", "with_key"),
    (lambda: RangeQuery, "with_bounds", "with_range(low, high)"),
]


@pytest.mark.parametrize("make, name, python", NAMES, ids=lambda part: part if isinstance(part, str) else "")
def test_a_java_name_gets_the_python_one(make, name, python):
    with pytest.raises(AttributeError) as raised:
        getattr(make(), name)
    assert f"has no {name!r}: use " in str(raised.value)
    assert python in str(raised.value)


@pytest.mark.parametrize(
    "kind, name, python",
    [
        (Producer, "partitionsFor", "Admin(log).describe(topic)"),
        (Producer, "initTransactions", "send(...)"),
        (Consumer, "commitSync", "commit()"),
        (Consumer, "seekToBeginning", "seek_to_beginning"),
        (Consumer, "endOffsets", "Admin(log).describe(topic).extents"),
        (Admin, "createTopics", "create_topic(name, partitions=)"),
        (Admin, "listConsumerGroups", "groups()"),
    ],
)
def test_a_java_name_of_a_client_gets_the_python_one(kind, name, python, log):
    with kind(log) as client, pytest.raises(AttributeError) as raised:
        getattr(client, name)
    assert python in str(raised.value)


@pytest.mark.parametrize(
    "option, near",
    [
        ("comit_interval", "commit_interval"),
        ("chekpoint", "checkpoint"),
        ("num_stream_thread", "num_stream_threads"),
        ("commitIntervalMs", "commit_interval_ms"),
        ("default_key_sered", "default_key_serde"),
    ],
)
def test_an_unknown_option_of_an_application_is_an_error_with_a_guess(option, near):
    with pytest.raises(TypeError) as raised:
        application(**{option: 5})
    assert f"Application() has no option {option}=: did you mean {near}=?" in str(raised.value)
    assert "(options: log=, checkpoint=, guarantee=" in str(raised.value)


def test_an_option_like_no_other_is_an_error_without_a_guess():
    with pytest.raises(TypeError, match=r"has no options colour=, zebra= \(options: log="):
        application(colour=1, zebra=2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda log: application().query("s", KeyQuery("a"), atleast=3), "did you mean at_least=?"),
        (lambda log: application().drain(timout=3), "did you mean timeout=?"),
        (lambda log: Topology().add_source("a", "b", key_serde=serde.STRING), "did you mean key=?"),
        (lambda log: Topology().add_sink("a", "b", parent="c"), "the names of the parents as arguments"),
        (lambda log: Producer(log, key_serializer=serde.STRING), "did you mean key=?"),
        (lambda log: Consumer(log, group_id="g"), "did you mean group=?"),
        (lambda log: Consumer(log).poll(timeout_ms=5), "did you mean timeout=?"),
        (lambda log: TopologyTestDriver(topology()).input_topic("in", auto_advance=4), "did you mean advance=?"),
        (lambda log: Application("a", StreamsBuilder(), log=log), "as builder.build() makes it"),
        (lambda log: TopologyTestDriver(StreamsBuilder()), "as builder.build() makes it"),
    ],
)
def test_a_wrong_option_is_a_type_error_that_says_what_to_write(call, message, log):
    with pytest.raises(TypeError) as raised:
        call(log)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda log, duration: Consumer(log).poll(duration),
        lambda log, duration: Consumer(log, session_timeout=duration),
        lambda log, duration: Producer(log).flush(duration),
        lambda log, duration: Producer(log).flush(timeout=duration),
        lambda log, duration: Producer(log, linger=duration),
        lambda log, duration: application(log=log).close(duration),
        lambda log, duration: application(log=log, commit_interval=duration),
        lambda log, duration: Client("http://127.0.0.1:8089", timeout=duration),
    ],
)
def test_a_duration_is_milliseconds_or_a_timedelta(call, log):
    call(log, 1)
    call(log, timedelta(milliseconds=1))
    with pytest.raises((TypeError, ValueError)):
        call(log, 1.5)
