"""Settings that change what a topology does, in the driver and in the set-up of an application."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from headrace import Application, Stores, StreamsBuilder, StreamsError, Topology, TopologyError, serde
from headrace.config import Config
from headrace.errors import UnsafePathError
from headrace.log.embedded.file_log import FileLog
from headrace.model.ids import TaskId
from headrace.spark.job import Job, remove_old_state
from headrace.testing import TopologyTestDriver
from headrace.topology.subtopologies import plan
from tests.other_users import give_away

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
OPTIMIZED = {"topology.optimization": "all"}


def counted_twice() -> StreamsBuilder:
    """Two counts of the same changed key, which optimization repartitions once."""
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).select_key(lambda key, value: value)
    words.group_by_key(**TEXTS).count(store="all")
    words.filter(lambda word: len(word) > 3).group_by_key(**TEXTS).count(store="long")
    return builder


# ------------------------------------------------------------------------------------------ topology.optimization
def test_the_setting_optimizes_a_topology_that_was_built_without_a_word_about_it():
    builder = counted_twice()
    topology = builder.build()
    assert len(topology.internal_topics) == 2
    by_setting = topology.configured(Config.of(OPTIMIZED))
    assert by_setting.internal_topics == builder.build(optimize="all").internal_topics
    assert str(by_setting.describe()) == str(builder.build(optimize="all").describe())
    assert len(topology.internal_topics) == 2  # the one given is as before
    assert (
        Application("app", topology, "file:x", config=OPTIMIZED).topology.internal_topics == by_setting.internal_topics
    )


def test_what_build_is_told_wins_over_the_setting():
    topology = counted_twice().build(optimize="none")
    assert len(topology.configured(Config.of(OPTIMIZED)).internal_topics) == 2


def test_the_driver_runs_the_optimized_topology():
    with TopologyTestDriver(counted_twice().build(), OPTIMIZED) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "word")
        assert len([topic for topic in driver.produced_topics if topic.endswith("-repartition")]) == 1
        assert driver.store("all").get("word").value == driver.store("long").get("word").value == 1


def test_nodes_that_were_added_by_hand_are_in_the_optimized_topology_too():
    builder = StreamsBuilder()
    builder.stream("in", name="source", **TEXTS).to("copy")
    topology = builder.build().add_sink("more", "out", "source", **TEXTS)
    with TopologyTestDriver(topology, OPTIMIZED) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v")
        assert driver.output_topic("out", **TEXTS).read_values() == ["v"]


def test_a_builder_can_go_on_after_it_was_built():
    builder = counted_twice()
    before = str(builder.build(optimize="all").describe())
    assert str(builder.build(optimize="all").describe()) == before
    builder.stream("more", **TEXTS).to("out")
    assert "topics: [more]" in str(builder.build(optimize="all").describe())


# ------------------------------------------------------------------------ ensure.explicit.internal.resource.naming
NAMED = {"ensure.explicit.internal.resource.naming": "true"}


def test_generated_names_are_listed_and_refused():
    builder = StreamsBuilder()
    table = builder.table("table", **TEXTS)
    stream = builder.stream("in", **TEXTS).select_key(lambda key, value: value)
    stream.group_by_key(**TEXTS).count()
    stream.join(table, lambda left, right: left, **TEXTS).to("out")
    with pytest.raises(TopologyError) as refused:
        Application("app", builder.build(), "file:x", config=NAMED)
    text = str(refused.value)
    assert "state stores: KSTREAM-AGGREGATE-STATE-STORE-" in text
    assert "table-STATE-STORE-0000000000" in text
    assert "internal topics: KSTREAM-" in text
    with pytest.raises(TopologyError, match=r"names are generated: .*Give names: store= "):
        TopologyTestDriver(builder.build(), NAMED)


def test_given_names_are_accepted():
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).group_by(lambda key, value: value, name="by-word", **TEXTS)
    words.count(store="counts")
    with TopologyTestDriver(builder.build(), NAMED) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "word")
        assert driver.store("counts").get("word").value == 1


# --------------------------------------------------------------------- processing.exception.handler.global.enabled
class Fails:
    def init(self, context):
        pass

    def process(self, record):
        raise ValueError("no")


@pytest.mark.parametrize("enabled", [False, True])
def test_the_processing_handler_is_for_global_stores_only_if_that_is_asked_for(enabled):
    topology = Topology().add_global_store(Stores.key_value("rows", **TEXTS), "table", Fails, **TEXTS)
    settings = {"processing.exception.handler": "continue", "processing.exception.handler.global.enabled": enabled}
    with TopologyTestDriver(topology, settings) as driver:
        topic = driver.input_topic("table", **TEXTS)
        if enabled:
            topic.pipe("k", "v")
            assert driver.metrics()["dropped-records-total"] == 1
        else:
            with pytest.raises(StreamsError, match="rows-processor failed on table/0 at offset 0"):
                topic.pipe("k", "v")


# ---------------------------------------------------------------------------------------------------- the set-up
def test_the_log_can_be_given_as_bootstrap_servers(tmp_path):
    topology = Topology().add_source("in", "a")
    app = Application("app", topology, config={"bootstrap.servers": f"file:{tmp_path}"})
    assert app.setup.log == f"file:{tmp_path}"
    assert Application("app", topology, bootstrap_servers="one:1,two:2").setup.log == "kafka://one:1,two:2"


def test_an_application_reads_settings_from_the_environment(monkeypatch):
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "one:9092")
    monkeypatch.setenv("HEADRACE_COMMIT_INTERVAL_MS", "700")
    setup = Application("app", Topology().add_source("in", "a"), config={"emit.interval.ms": 5}).setup
    assert (setup.log, setup.config.commit_interval_ms, setup.config.emit_interval_ms) == ("kafka://one:9092", 700, 5)


def test_the_embedded_log_has_one_copy_of_a_topic(tmp_path):
    with FileLog(tmp_path) as log:
        with pytest.raises(ValueError, match=r"'a' cannot have 3 copies: the embedded log is one directory"):
            log.create_topic("a", replication_factor=3)
        assert log.create_topic("a", replication_factor=1).partitions == 1


def job_of(state: Path, **settings) -> Job:
    graph = Topology().add_source("in", "a").graph()
    config = Config.of(settings)
    return Job("app", graph, plan(graph), config, {0: 2}, {}, "file:x", "checkpoint", str(state))


def test_local_state_of_tasks_that_are_gone_is_removed_after_the_delay(tmp_path):
    for name in ("0_0", "0_1", "0_2", "3_0"):
        (tmp_path / "app" / name).mkdir(parents=True)
        (tmp_path / "app" / name / "data.mdb").touch()
    long_ago = time.time() - 1000
    for path in ((tmp_path / "app" / "0_2"), (tmp_path / "app" / "0_2" / "data.mdb"), (tmp_path / "app" / "0_0")):
        os.utime(path, (long_ago, long_ago))
    remove_old_state(job_of(tmp_path))
    assert sorted(path.name for path in (tmp_path / "app").iterdir() if path.is_dir()) == ["0_0", "0_1", "3_0"]
    remove_old_state(job_of(tmp_path, **{"state.cleanup.delay.ms": 0}))
    assert sorted(path.name for path in (tmp_path / "app").iterdir() if path.is_dir()) == [
        str(TaskId(0, 0)),
        str(TaskId(0, 1)),
    ]


def test_every_host_resolves_the_default_state_directory_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "driver"))
    application = Application("app", Topology().add_source("in", "a"), "file:x", state_dir=None)
    assert application.setup.state_dir is None
    sent = cloudpickle.dumps(replace(job_of(tmp_path), state=application.setup.state_dir))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "slot"))
    assert cloudpickle.loads(sent).local_state == tmp_path / "slot" / "headrace" / "app"
    of_user = Application("app", Topology().add_source("in", "a"), "file:x", state_dir="~/state").setup.state_dir
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert replace(job_of(tmp_path), state=of_user).local_state == tmp_path / "home" / "state" / "app"


def test_a_state_directory_that_is_given_is_the_same_wherever_a_process_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = Application("app", Topology().add_source("in", "a"), "file:x", state_dir="state").setup.state_dir
    assert given == str(tmp_path / "state")
    monkeypatch.chdir("/")
    assert replace(job_of(tmp_path), state=given).local_state == tmp_path / "state" / "app"


def test_clean_up_removes_the_state_in_the_default_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("app", "other"):
        (tmp_path / "headrace" / name / "0_0").mkdir(parents=True)
    Application("app", Topology().add_source("in", "a"), "file:x").clean_up()
    assert [folder.name for folder in (tmp_path / "headrace").iterdir()] == ["other"]


@pytest.mark.parametrize("unsafe", ["a link of another user", "of another user", "open to everybody"])
def test_clean_up_deletes_nothing_in_a_state_directory_that_is_not_safe(tmp_path, monkeypatch, unsafe):
    state, victim = tmp_path / "state", tmp_path / "victim"
    (victim / "app").mkdir(parents=True)
    (victim / "app/file").touch()
    if unsafe == "a link of another user":
        state.symlink_to(victim)
        give_away(state, monkeypatch)
    else:
        state = victim
        if unsafe == "of another user":
            give_away(state, monkeypatch)
        else:
            state.chmod(0o777)
    application = Application("app", Topology().add_source("in", "a"), "file:x", state_dir=str(state))
    with pytest.raises(UnsafePathError):
        application.clean_up()
    assert (victim / "app/file").exists()


def test_clean_up_follows_a_link_of_the_users_own_and_none_inside(tmp_path):
    (tmp_path / "disk/app").mkdir(parents=True)
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    (tmp_path / "kept").mkdir()
    (tmp_path / "disk/app/0_0").symlink_to(tmp_path / "kept")
    (tmp_path / "disk/other").symlink_to(tmp_path / "kept")
    for name in ("app", "other", "missing"):
        Application(name, Topology().add_source("in", "a"), "file:x", state_dir=str(tmp_path / "state")).clean_up()
    assert [folder.name for folder in (tmp_path / "disk").iterdir()] == ["other"]
    assert (tmp_path / "kept").exists()
