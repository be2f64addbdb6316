"""Metrics in the text that Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

from headrace.query import Follower
from headrace.web import ApplicationView
from tests.query.programs import feed, finished
from tests.web.servers import FakeApplication, ask, counted, ends, served


def samples(answer):
    families = text_string_to_metric_families(answer.body.decode())
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def test_every_number_is_that_of_the_application():
    cluster = finished(limit=3)
    application = FakeApplication(
        ends={at: end + 2 for at, end in ends(cluster).items()},
        phases={3: {"plan": 5.0}, 4: {"plan": 10.0, "commit": 20.0, "deliver": 10.0}},
        **counted(),
        delivered=4,
    )
    with served(cluster, application) as server:
        answer = ask(server.url, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = samples(answer)
    assert found["headrace_state", "RUNNING"] == 1
    assert found["headrace_state", "ERROR"] == 0
    assert found["headrace_batch",] == cluster.coordinator.ledger.number
    assert found["headrace_batch_delivered",] == 4
    assert (found["headrace_slot_tasks", "0", "one"], found["headrace_slot_tasks", "1", "two"]) == (2, 1)
    assert (found["headrace_slot_standbys", "0", "one"], found["headrace_slot_standbys", "1", "two"]) == (1, 2)
    lag = {names[1:]: value for names, value in found.items() if names[0] == "headrace_standby_lag_batches"}
    assert lag == {("0", "0_1"): 0, ("0_0", "1"): 2, ("1", "1_0"): 0}
    assert found["headrace_task_moves_total",] == 3
    assert found["headrace_queued_slots",] == 1
    assert found["headrace_batch_phase_seconds", "commit"] == 0.02
    assert found["headrace_log_to_log_seconds", "0.5"] == 0.04
    assert found["headrace_log_to_log_seconds", "0.99"] == 0.09
    assert found["headrace_log_wait_seconds",] == 0.005
    assert sum(v for k, v in found.items() if k[0] == "headrace_records_in_total") == 60
    assert {v for k, v in found.items() if k[0] == "headrace_lag_records"} == {2}
    assert found["headrace_records_out_total", "out"] == 30
    assert found["headrace_node_records_total", "0_1", "KSTREAM-SOURCE-0000000000"] == 20
    assert found["headrace_dead_letters_total",] == 1
    assert found["headrace_store_entries", "counts"] == 7
    assert found["headrace_stream_time_lag_seconds", "0_0"] == 0.6
    assert found["headrace_restores_total", "caught up"] == 2
    assert found["headrace_restored_entries_total",] == 70
    assert found["headrace_restore_seconds_total",] == 0.5
    latency = {key[1]: count for key, count in found.items() if key[0] == "headrace_end_to_end_latency_seconds_bucket"}
    assert [latency[bound] for bound in ("0.064", "0.128", "1.024", "+Inf")] == [0, 3, 9, 9]
    assert found["headrace_end_to_end_latency_seconds_count",] == 9
    assert found["headrace_end_to_end_latency_seconds_sum",] == 6.3
    of_source = {
        name[0].removeprefix("headrace_source_"): value for name, value in found.items() if "customers" in name
    }
    assert of_source == {"records_total": 7, "lag": 120, "away": 1, "failures_total": 2}
    of_sink = {name[0].removeprefix("headrace_sink_"): value for name, value in found.items() if "lake" in name}
    assert of_sink == {
        "records_total": 50, "rejected_records_total": 1, "batch": 4, "waiting_batches": 2, "away": 1,
        "failures_total": 3,
    }  # fmt: skip
    sizes = [v for k, v in found.items() if k[0] == "headrace_state_bytes"]
    assert len(sizes) == 6
    assert min(sizes) > 0


def test_hostile_labels_stay_text():
    cluster = finished(limit=3)
    name = 'a"} 1\nheadrace_forged 1\n'
    with served(cluster, FakeApplication(sent={name: 1})) as server:
        found = samples(ask(server.url, "/metrics"))
    assert found["headrace_records_out_total", name] == 1
    assert not any(key[0] == "headrace_forged" for key in found)


def test_a_few_records_that_wait_are_no_backlog():
    cluster = finished(limit=3)
    follower = Follower(cluster.storage, clock=cluster.ground.clock)
    follower.refresh()
    feed(cluster.log, [("new", "x")] * 20)
    cluster.run()
    follower.refresh()
    for more, words in [(1, "Healthy: it keeps up; 6 records wait"), (100, "Catching up: 600 records wait")]:
        application = FakeApplication(ends={at: end + more for at, end in ends(cluster).items()})
        status = ApplicationView(follower=follower, application=application, clock=cluster.ground.clock).status()
        assert (status["healthy"], words in status["verdict"]) == (True, True), status


def test_the_verdict_is_a_sentence_with_its_reason():
    cluster = finished(limit=3)
    follower = Follower(cluster.storage, clock=cluster.ground.clock)
    follower.refresh()
    behind = {at: end + 5 for at, end in ends(cluster).items()}
    for application, healthy, words in [
        (FakeApplication(ends=ends(cluster)), True, "every record in the log has been processed"),
        (FakeApplication(ends=behind, batches=7), False, "Stuck: 30 records wait"),
        (FakeApplication(ends=behind), False, "Starting: the first batch runs, and 30 records wait"),
        (FakeApplication(state="UNKNOWN"), False, "Silent: the last heartbeat"),
        (FakeApplication(paused=True, ends=behind), True, "Paused"),
        (FakeApplication(state="NOT_RUNNING"), True, "Not running"),
        (FakeApplication(state="REBALANCING"), False, "Starting: the application takes over"),
        (FakeApplication(state="REBALANCING", batches=7), True, "Planning again"),
        (FakeApplication(ready=False), False, "Starting: the slots are not there yet"),
        (FakeApplication(ready=False, queued_slots=2), False, "Waiting for Spark: it has no core for the slots"),
        (FakeApplication(state="ERROR", error="a function failed"), False, "a function failed"),
    ]:
        status = ApplicationView(follower=follower, application=application, clock=cluster.ground.clock).status()
        assert (status["healthy"], words in status["verdict"]) == (healthy, True), status
