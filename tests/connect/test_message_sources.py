"""Messages of an MQTT broker, and the records of another log: each is written once, whatever crashes."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from headrace.connect import LogSource, MqttSource
from headrace.connect.source import SourceRunner
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import check_source
from headrace.testing.source_check import read_pairs
from headrace.topology.connectors import SourceSpec
from tests.connect.servers import MosquittoServer


class Crash(BaseException):
    pass


def test_a_topic_of_another_log_keeps_partitions_times_and_headers(tmp_path):
    with closing(FileLog(tmp_path / "there")) as there:
        there.create_topic("orders", 2)
        headers = [(("trace", b"7"),)] * 3
        there.append(
            [(TopicPartition("orders", 1), Records([b"a", None, b"c"], [b"1", b"2", None], [5, 6, 7], headers))]
        )
        there.append([(TopicPartition("orders", 0), Records([b"b"], [b"4"], [8]))])
        there.delete_records({TopicPartition("orders", 1): 1})
    source = LogSource(f"file:{tmp_path}/there", "orders", offsets=False)
    with closing(FileLog(tmp_path / "here")) as log:
        spec = SourceSpec(source=source, topic="copies", key=source.key, value=source.value)
        runner = SourceRunner("mirror", spec, log, max_records=1, read_timeout=0.0)
        while not runner.is_caught_up:
            runner.advance()
        runner.close()
        found = {at: [row for chunk in log.read(at, 0) for row in chunk.rows()] for at in log.extents(["copies"])}
        assert found == {
            TopicPartition("copies", 0): [(0, b"b", b"4", 8, ())],
            TopicPartition("copies", 1): [(0, None, b"2", 6, headers[0]), (1, b"c", None, 7, headers[0])],
        }


def test_a_mirror_survives_crashes(tmp_path):
    with closing(FileLog(tmp_path)) as there:
        there.create_topic("orders")
        there.append([(TopicPartition("orders", 0), Records([b"a", b"b", b"c"], [b"1", b"2", b"3"], [5, 6, 7]))])
    check_source(lambda: LogSource(f"file:{tmp_path}", "orders"), [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])


@pytest.mark.slow
def test_mqtt_messages_are_written_once(tmp_path, mosquitto: MosquittoServer):
    """The source is crashed at every step while messages wait for it; the broker keeps them."""
    sender = Client(CallbackAPIVersion.VERSION2)
    sender.connect("127.0.0.1", mosquitto.port)
    sender.loop_start()
    source = MqttSource("127.0.0.1", "rooms/#", client_id="shop-rooms", port=mosquitto.port)
    spec = SourceSpec(source=source, topic="rooms", key=source.key, value=source.value)
    sent, moments = 0, ["source open", "source read", "source delivery", "source acknowledgement"]
    with closing(FileLog(tmp_path)) as log:
        for moment in [None, *(f"{when} {name}" for name in moments for when in ("before", "after")), None]:

            def at_step(now, moment=moment):
                if now == moment:
                    raise Crash

            runner = SourceRunner("shop-rooms", spec, log, max_records=2, read_timeout=0.2, at_step=at_step)
            end = time.monotonic() + 60
            try:
                while log_size(log) < sent or runner.report().state != "RUNNING":
                    runner.advance()
                    assert time.monotonic() < end
            except Crash:
                pass
            runner.close()
            for _ in range(3):
                sender.publish(f"rooms/{sent % 2}", str(sent), qos=1).wait_for_publish(30)
                sent += 1
        runner = SourceRunner("shop-rooms", spec, log, read_timeout=1.0)
        while not (runner.is_caught_up and log_size(log) >= sent):
            runner.advance()
        runner.close()
        assert read_pairs(log, spec) == [(f"rooms/{number % 2}", b"%d" % number) for number in range(sent)]
    sender.disconnect()
    sender.loop_stop()


def log_size(log):
    return sum(log.ends([TopicPartition("rooms", 0)]).values()) if "rooms" in log.topics() else 0
