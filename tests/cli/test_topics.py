"""Topics and groups: listed, made, described, altered, deleted."""

import json

import pytest

from headrace.clients import Consumer
from headrace.log import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition


@pytest.fixture
def topics(headrace, address):
    def run(command, *arguments):
        return headrace("topics", command, "--log", address, *arguments)

    return run


def test_a_topic_is_made_and_listed(topics):
    assert topics("create", "--topic", "orders", "--partitions", "3").err == "Created topic orders.\n"
    topics("create", "--topic", "lines", "--replication-factor", "1")
    assert topics("list").out == "lines\norders\n"
    assert json.loads(topics("list", "--json").out) == ["lines", "orders"]
    assert topics("list", "--topic", "l.*").out == "lines\n"


def test_the_embedded_log_refuses_more_than_one_copy(topics):
    refused = topics("create", "--topic", "lines", "--replication-factor", "3")
    assert (refused.code, "cannot have 3 copies: the embedded log is one directory" in refused.err) == (1, True)
    assert topics("list").out == ""


def test_a_topic_that_is_there_is_refused_unless_that_is_fine(topics):
    topics("create", "--topic", "orders")
    refused = topics("create", "--topic", "orders")
    assert (refused.code, refused.err) == (1, "headrace: there is a topic 'orders' already, with 1 partitions\n")
    assert topics("create", "--topic", "orders", "--if-not-exists").code == 0


def test_a_topic_is_described_with_its_offsets_and_settings(topics, address):
    topics("create", "--topic", "orders", "--partitions", "2", "--config", "cleanup.policy=compact")
    log = open_log(address)
    log.append([(TopicPartition("orders", 1), Records([b"k"], [b"v"], [10]))])
    log.close()
    (described,) = json.loads(topics("describe", "--json").out)
    assert (described["topic"], described["partitions"]) == ("orders", 2)
    assert described["config"]["cleanup.policy"] == "compact"
    assert described["offsets"][1] == {"partition": 1, "earliest": 0, "end": 1, "records": 1}
    text = topics("describe", "--topic", "orders").out
    assert text.startswith("Topic: orders\tTopicId: ")
    assert "PartitionCount: 2\tConfigs: cleanup.policy=compact\n" in text


def test_a_topic_gets_more_partitions_and_other_settings(topics):
    topics("create", "--topic", "orders")
    topics("alter", "--topic", "orders", "--partitions", "4", "--config", "retention.ms=1000")
    topics("alter", "--topic", "orders", "--delete-config", "retention.ms", "--config", "max.message.bytes=10")
    (described,) = json.loads(topics("describe", "--json").out)
    assert (described["partitions"], described["config"]["retention.ms"]) == (4, "-1")
    assert described["config"]["max.message.bytes"] == "10"
    assert topics("alter", "--topic", "orders").code == 2
    assert topics("alter", "--topic", "none", "--partitions", "2", "--if-exists").code == 0
    fewer = topics("alter", "--topic", "orders", "--partitions", "2")
    assert (fewer.code, "it can get more, but not 2" in fewer.err) == (1, True)


def test_settings_that_are_none_are_refused(topics):
    assert topics("create", "--topic", "a", "--config", "retention").code == 2
    refused = topics("create", "--topic", "a", "--config", "retention.mss=1")
    assert (refused.code, "did you mean 'retention.ms'?" in refused.err) == (1, True)


def test_topics_are_deleted_by_name_or_pattern(topics):
    for name in ("a1", "a2", "b"):
        topics("create", "--topic", name)
    assert topics("delete", "--topic", "a.").err == "Deleted topic a1.\nDeleted topic a2.\n"
    assert topics("delete", "--topic", "a1").code == 1
    assert topics("delete", "--topic", "a1", "--if-exists").code == 0
    assert topics("list").out == "b\n"


def test_names_that_look_like_markup_are_shown_as_they_are(topics, headrace, address):
    log = open_log(address)
    log.create_topic("a")
    with Consumer(log, "[bold]group[/bold]", auto_offset_reset="earliest") as consumer:
        consumer.subscribe("a")
        consumer.poll()
        log.append([(TopicPartition("a", 0), Records([b"k"], [b"v"], [10]))])
    log.close()
    assert "[bold]group[/bold]" in headrace("groups", "describe", "--log", address).out


def test_groups_are_described_with_their_lag(headrace, address):
    log = open_log(address)
    log.create_topic("orders", 2)
    log.append([(TopicPartition("orders", 0), Records([b"k"] * 3, [b"v"] * 3, [10] * 3))])
    log.commit("shop", {TopicPartition("orders", 0): 1})
    log.close()
    assert headrace("groups", "list", "--log", address).out == "shop\n"
    (row,) = json.loads(headrace("groups", "describe", "--group", "shop", "--log", address, "--json").out)
    assert row == {
        "group": "shop",
        "topic": "orders",
        "partition": 0,
        "current_offset": 1,
        "log_end_offset": 3,
        "lag": 2,
        "consumer_id": None,
    }
    unknown = headrace("groups", "describe", "--group", "x", "--log", address)
    assert (unknown.code, unknown.err) == (1, "headrace: there is no group 'x' (there are: shop)\n")


def test_the_environment_can_name_the_log(headrace, address, monkeypatch):
    monkeypatch.setenv("HEADRACE_LOG", address)
    assert headrace("topics", "create", "--topic", "a").code == 0
    assert headrace("topics", "list").out == "a\n"
