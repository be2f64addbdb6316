"""Settings: Kafka Streams' names and values, and what is said about wrong ones."""

import logging
from datetime import timedelta

import pytest

from headrace.config import Config, settings
from headrace.errors import ConfigError

EVERY_OPTIMIZATION = {"reuse.ktable.source.topics", "merge.repartition.topics", "single.store.self.join"}


def test_without_settings_there_are_defaults():
    config = Config.of()
    assert config == Config()
    assert config.statestore_cache_max_bytes == 10 * 1024 * 1024
    assert config.emit_interval_ms == 1000
    assert config.processing_guarantee == "exactly_once"
    assert config.extra == {}


def test_dotted_names_and_keywords_are_the_same_and_keywords_win():
    config = Config.of({"application.id": "a", "commit.interval.ms": 5, "state_dir": "/s"}, commit_interval_ms=7)
    assert (config.application_id, config.commit_interval_ms, config.state_dir) == ("a", 7, "/s")


def test_a_setting_of_none_is_not_set():
    assert Config.of({"commit.interval.ms": None}) == Config()


@pytest.mark.parametrize(
    "name, value, attribute, expected",
    [
        ("cache.max.bytes.buffering", "0", "statestore_cache_max_bytes", 0),
        ("emit.interval.ms", timedelta(seconds=2), "emit_interval_ms", 2000),
        ("__emit.interval.ms.kstreams.windowed.aggregation__", 0, "emit_interval_ms", 0),
        ("dsl.store.suppliers.class", "memory", "dsl_store_suppliers_class", "memory"),
        (
            "dsl.store.suppliers.class",
            "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$RocksDBDslStoreSuppliers",
            "dsl_store_suppliers_class",
            "persistent",
        ),
        ("dsl.store.suppliers.class", type("InMemoryDslStoreSuppliers", (), {}), "dsl_store_suppliers_class", "memory"),
        ("default.dsl.store", "rocksDB", "dsl_store_suppliers_class", "persistent"),
        ("default.dsl.store", "in_memory", "dsl_store_suppliers_class", "memory"),
        ("dsl.store.format", "headers", "dsl_store_format", "HEADERS"),
        ("processing.guarantee", "exactly_once_beta", "processing_guarantee", "exactly_once"),
        ("processing.guarantee", "at_least_once", "processing_guarantee", "at_least_once"),
        ("topology.optimization", "none", "topology_optimization", frozenset()),
        ("topology.optimization", "all", "topology_optimization", EVERY_OPTIMIZATION),
        ("topology.optimization", {"merge.repartition.topics"}, "topology_optimization", {"merge.repartition.topics"}),
        ("deserialization.exception.handler", "continue", "deserialization_exception_handler", "continue"),
        (
            "default.deserialization.exception.handler",
            "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
            "deserialization_exception_handler",
            "continue",
        ),
        (
            "processing.exception.handler",
            "LogAndFailProcessingExceptionHandler",
            "processing_exception_handler",
            "fail",
        ),
        ("production.exception.handler", print, "production_exception_handler", print),
        ("ensure.explicit.internal.resource.naming", "TRUE", "ensure_explicit_internal_resource_naming", True),
        ("max.task.idle.ms", -1, "max_task_idle_ms", -1),
        ("default.key.serde", "LongSerde", "default_key_serde", "LongSerde"),
        ("key.serde", "LongSerde", "default_key_serde", "LongSerde"),
        ("value.serde", "LongSerde", "default_value_serde", "LongSerde"),
        ("replication.factor", "3", "replication_factor", 3),
    ],
)
def test_a_value_is_understood(name, value, attribute, expected):
    assert getattr(Config.of({name: value}), attribute) == expected


@pytest.mark.parametrize(
    "name, value, remedy",
    [
        ("application.id", "", "not empty"),
        ("application.id", "/var/lib", "letters, digits"),
        ("application.id", "..", "not '.' or '..'"),
        ("application.id", "a/../../b", "letters, digits"),
        ("application.id", "a" * 250, "at most 249"),
        ("statestore.cache.max.bytes", -1, "at least 0"),
        ("statestore.cache.max.bytes", "lots", "whole number"),
        ("statestore.cache.max.bytes", 1.5, "whole number"),
        ("statestore.cache.max.bytes", True, "whole number"),
        ("num.stream.threads", 0, "at least 1"),
        ("emit.interval.ms", "1s", "milliseconds"),
        ("dsl.store.suppliers.class", "papyrus", "persistent, memory"),
        ("dsl.store.suppliers.class", 5, "persistent, memory"),
        ("dsl.store.format", "AVRO", "DEFAULT, PLAIN, HEADERS"),
        ("replication.factor", 0, "at least 1"),
        ("processing.guarantee", "at_most_once", "records would be lost"),
        ("processing.guarantee", "twice", "exactly_once"),
        ("topology.optimization", "some", '"none", "all"'),
        ("topology.optimization", "all,none", '"none", "all"'),
        ("deserialization.exception.handler", "shrug", "fail, continue, dead_letter"),
        ("deserialization.exception.handler", 5, "fail, continue, dead_letter"),
        ("ensure.explicit.internal.resource.naming", "perhaps", "true or false"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_the_remedy(name, value, remedy):
    with pytest.raises(ConfigError) as refused:
        Config.of({name: value})
    assert str(refused.value).startswith(f"{name}={value!r} cannot be used: ")
    assert remedy in str(refused.value)


@pytest.mark.parametrize("kind", ["deserialization", "processing", "production"])
def test_dead_letters_need_a_topic(kind):
    settings = {f"{kind}.exception.handler": "dead_letter"}
    with pytest.raises(ConfigError, match=r"set errors\.dead\.letter\.queue\.topic\.name"):
        Config.of(settings)
    Config.of(settings, errors_dead_letter_queue_topic_name="dead")


@pytest.fixture
def said(caplog, monkeypatch):
    """The warnings since the last call, in a process that has warned of nothing yet."""
    monkeypatch.setattr(settings, "_named", set())
    caplog.set_level(logging.WARNING)

    def since():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return since


def test_a_setting_without_effect_is_named_once_with_the_reason(said):
    given = {"rocksdb.config.setter": "x", "application.id": "a", "acks": "all", "my.own": 1, "topic.segment.ms": 5}
    assert Config.of(given).extra == {name: value for name, value in given.items() if name != "application.id"}
    assert said() == [
        "the setting rocksdb.config.setter has no effect: stores are kept in LMDB, not in RocksDB",
        "the setting acks has no effect: give it to one kind of client, as consumer.acks, producer.acks or admin.acks",
        "the setting my.own has no effect: nothing here reads it (`headrace config` lists the settings)",
        "the setting topic.segment.ms has no effect: internal topics are not in the log",
    ]
    Config.of(given)
    assert said() == []


def test_a_setting_that_only_the_other_trigger_reads_is_named_once(said):
    given = {"num.standby.replicas": 1, "slot.lease.ms": 2000, "driver.ports": "7000-7009", "num.stream.threads": 2}
    settings.name_settings_of_other_trigger(Config.of(given))
    assert said() == []
    config = Config.of(given, processing_trigger="micro-batch")
    settings.name_settings_of_other_trigger(config)
    why = "has no effect: only the real-time trigger reads it, and processing.trigger is micro-batch"
    assert said() == [f"the setting {name} {why}" for name in ("num.standby.replicas", "slot.lease.ms", "driver.ports")]
    settings.name_settings_of_other_trigger(config)
    assert said() == []


@pytest.mark.parametrize("name", ["max.warmup.replicas", "window.size.ms", "buffered.records.per.partition"])
def test_what_kafka_streams_has_and_headrace_has_not_is_no_error(name, said):
    Config.of({name: 1})
    assert said()[0].startswith(f"the setting {name} has no effect: ")


@pytest.mark.parametrize(
    "name, meant",
    [
        ("commit.intervall.ms", "commit.interval.ms"),
        ("default.key.serd", "default.key.serde"),
        ("securty.protocol", "security.protocol"),
        ("num.standby.replica", "num.standby.replicas"),
    ],
)
def test_a_misspelt_setting_is_refused_with_a_guess(name, meant):
    with pytest.raises(ConfigError, match=f"there is no setting '{name}': did you mean '{meant}'"):
        Config.of({name: 1})


def test_settings_of_clients_are_passed_on_with_the_replication_factor(said):
    given = {"security.protocol": "SSL", "producer.linger.ms": 1}
    assert Config.of(given, replication_factor=3).client_settings == {**given, "replication.factor": 3}
    assert said() == []


def test_keywords_come_before_the_file_before_the_environment_before_defaults(tmp_path):
    file = tmp_path / "streams.properties"
    file.write_text("commit.interval.ms=2\nnum.partitions=2\n")
    variables = {
        "HEADRACE_COMMIT_INTERVAL_MS": "1",
        "HEADRACE_NUM_PARTITIONS": "1",
        "HEADRACE_EMIT_INTERVAL_MS": "1",
        "HEADRACE_SASL_PASSWORD": "secret",
    }
    config = Config.of(file, environment=variables, commit_interval_ms=3)
    assert (config.commit_interval_ms, config.num_partitions, config.emit_interval_ms) == (3, 2, 1)
    assert config.max_task_idle_ms == 0
    assert config.extra == {"sasl.password": "secret"}


def test_an_environment_variable_that_is_no_setting_is_named_with_a_guess(said):
    variables = {"HEADRACE_COMIT_INTERVAL_MS": "1", "HEADRACE_LOG": "file:x", "HEADRACE_NOTHING_AT_ALL": "", "A": ""}
    assert Config.of(environment=variables) == Config()
    assert said() == [
        "the environment variable HEADRACE_COMIT_INTERVAL_MS is no setting: did you mean HEADRACE_COMMIT_INTERVAL_MS?",
        "the environment variable HEADRACE_NOTHING_AT_ALL is no setting: `headrace config` lists the settings",
    ]


def test_a_configuration_cannot_be_changed():
    config = Config.of({"acks": "all"})
    with pytest.raises(AttributeError):
        config.state_dir = "/"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        config.extra["acks"] = "0"  # pyright: ignore[reportIndexIssue]


def test_a_properties_file_is_a_configuration(tmp_path):
    file = tmp_path / "streams.properties"
    file.write_text("application.id=shop\nprocessing.guarantee = exactly_once_v2\nnum.stream.threads: 4\n")
    config = Config.of(file, num_stream_threads=2)
    assert (config.application_id, config.num_stream_threads) == ("shop", 2)
    assert Config.of(str(file)).num_stream_threads == 4


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"'nowhere\.properties' cannot be read"):
        Config.of("nowhere.properties")
