"""The public names of `headrace`: users import them, so a change here breaks programs."""

import importlib
import sys

import pytest

import headrace
from headrace import errors

PUBLIC = [
    "Admin",
    "AlreadyRunningError",
    "Application",
    "BatchNotKeptError",
    "BranchedKStream",
    "Buffer",
    "Cancellable",
    "CapturedStateWarning",
    "CheckpointCorruptedError",
    "CheckpointMismatchError",
    "CogroupedKStream",
    "ConfigError",
    "Consumer",
    "ConsumerRecord",
    "DailyWindows",
    "EmitStrategy",
    "FencedError",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "GroupInUseError",
    "IncompatibleSchemaError",
    "InvalidStateStoreError",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyPartitioner",
    "KeyQuery",
    "KeyValueStore",
    "LogBusyError",
    "LogCorruptedError",
    "LogUnavailableError",
    "Materialized",
    "MissingExtraError",
    "MissingFileError",
    "MultiVersionedKeyQuery",
    "OffsetOutOfRangeError",
    "Position",
    "PositionNotReachedError",
    "PrefixQuery",
    "ProcessingError",
    "Preview",
    "Processor",
    "ProcessorContext",
    "Producer",
    "ProducerFencedError",
    "Punctuation",
    "Query",
    "QueryResult",
    "RangeQuery",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecordsRejectedError",
    "SchemaRegistryError",
    "SerializationError",
    "SessionKeyQuery",
    "SessionRangeQuery",
    "SessionStore",
    "SessionWindows",
    "SlidingWindows",
    "StateCorruptedError",
    "StorageError",
    "SinkUnavailableError",
    "StoreNotReadyError",
    "StoreSpec",
    "Stores",
    "StreamsBuilder",
    "StreamsError",
    "Suppressed",
    "TaskId",
    "TimeWindows",
    "TimestampedKeyQuery",
    "TimestampedRangeQuery",
    "TopicExistsError",
    "TopicPartition",
    "Topology",
    "TopologyDescription",
    "TopologyError",
    "UnknownGroupError",
    "UnknownStoreError",
    "UnknownTopicError",
    "UnlimitedWindows",
    "UnsafePathError",
    "UnsuitableQueryError",
    "ValueAndTimestamp",
    "VersionedKeyQuery",
    "VersionedRecord",
    "VersionedStore",
    "Window",
    "WindowKeyQuery",
    "WindowRangeQuery",
    "WindowStore",
    "Windowed",
    "WindowedCogroupedKStream",
    "WindowedKStream",
    "read_store",
    "serde",
    "timestamps",
]

INTERNAL_ERRORS = {"StageRerunError"}  # the engine raises and catches it


def test_these_names_are_public():
    assert sorted(headrace.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(headrace, name) is not None


def test_every_error_that_a_user_may_catch_is_public():
    raised = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.StreamsError)
    }
    assert raised - INTERNAL_ERRORS <= set(PUBLIC)


def test_the_names_for_tests_are_public():
    testing = importlib.import_module("headrace.testing")
    for name in ("TopologyTestDriver", "TestInputTopic", "TestOutputTopic", "KafkaBroker"):
        assert hasattr(testing, name)


JAVA = [
    ("KafkaStreams", "Application"),
    ("Serdes", "serde.STRING"),
    ("Consumed", "builder.stream"),
    ("Produced", "to(topic"),
    ("Grouped", "group_by"),
    ("Joined", "join(other"),
    ("StreamJoined", "windows="),
    ("Named", "name="),
    ("Branched", "then="),
    ("Repartitioned", "partitions="),
    ("KStreamBuilder", "StreamsBuilder"),
    ("TopologyBuilder", "Topology"),
    ("StreamsConfig", "config="),
    ("PunctuationType", "Punctuation.WALL_CLOCK"),
    ("TopologyTestDriver", "headrace.testing.TopologyTestDriver"),
]


@pytest.mark.parametrize("java, python", JAVA)
def test_a_java_name_gets_the_python_one_when_it_is_imported(java, python):
    with pytest.raises(ImportError) as raised:
        exec(f"from headrace import {java}")  # noqa: S102
    assert str(raised.value).startswith(f"headrace has no {java!r}: use ")
    assert python in str(raised.value)


@pytest.mark.parametrize("java, python", JAVA)
def test_a_java_name_gets_the_python_one_as_an_attribute(java, python):
    assert not hasattr(headrace, java)
    with pytest.raises(AttributeError) as raised:
        getattr(headrace, java)
    assert python in str(raised.value)


@pytest.mark.parametrize("misspelt, name", [("KStraem", "KStream"), ("Applicaton", "Application")])
def test_python_guesses_a_misspelt_name(misspelt, name, capsys):
    with pytest.raises(AttributeError) as raised:
        getattr(headrace, misspelt)
    sys.__excepthook__(raised.type, raised.value, raised.tb)  # as the interpreter prints it
    assert f"Did you mean: '{name}'?" in capsys.readouterr().err


def test_another_name_cannot_be_imported_as_ever():
    with pytest.raises(ImportError, match="cannot import name 'Streamlet' from 'headrace'"):
        exec("from headrace import Streamlet")  # noqa: S102
