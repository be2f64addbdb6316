"""Redis, MQTT, HTTP and another log: what they have after kills at every step, and what they do when they are away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import paho.mqtt.client as mqtt
import pytest
import redis
from paho.mqtt.enums import CallbackAPIVersion

from headrace import Record
from headrace.connect import HttpSink, LogSink, MqttSink, RedisSink
from headrace.errors import RecordsRejectedError, SinkUnavailableError, StreamsError, summarize
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from headrace.model.sink import SinkBatch, SinkPart
from headrace.serde.internal import ROW
from headrace.testing import check_sink
from headrace.testing.sinks import sample_batches
from tests.connect.test_databases import batch, context, latest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_redis_has_the_last_value_of_each_key_after_kills_at_every_step(redis_server, kind):
    client: Any = redis.Redis.from_url(redis_server.url)

    def read(prefix):
        names = sorted(client.keys(f"{prefix}*"))
        get = client.hgetall if kind == "hash" else client.get
        return [(name.decode().removeprefix(prefix), get(name)) for name in names]

    def make(name):
        prefix = f"{kind}-{name}:"
        return RedisSink(redis_server.url, prefix, kind), lambda: read(prefix)

    check_sink(make)
    found = [
        (key, int(value[b"n"]) if kind == "hash" else json.loads(value)["n"])
        for key, value in read(f"{kind}-undisturbed:")
    ]
    assert found == latest()
    client.close()


def test_mqtt_gets_every_record_at_least_once(mosquitto):
    heard: list[tuple[str, bytes]] = []
    enough, ready = threading.Event(), threading.Event()

    def take(client, userdata, message):
        heard.append((message.topic, message.payload))
        if len(heard) == 3:
            enough.set()

    listener = mqtt.Client(CallbackAPIVersion.VERSION2)
    listener.on_message = take
    listener.on_subscribe = lambda *_: ready.set()
    listener.connect("127.0.0.1", mosquitto.port)
    listener.subscribe("sensors/#", qos=1)
    listener.loop_start()
    assert ready.wait(30)
    sink = MqttSink("127.0.0.1", "sensors/{key}", port=mosquitto.port)
    with closing(sink.open(context("mqtt"))) as writer:
        writer.write(batch(1, Record("a", {"n": 1}, 0), Record("b", "text", 0), Record("a", None, 0)))
    assert enough.wait(30)
    listener.disconnect()
    listener.loop_stop()
    assert heard == [("sensors/a", b'{"n":1}'), ("sensors/b", b"text"), ("sensors/a", b"")]


class Service(BaseHTTPRequestHandler):
    """Takes POSTs once for each idempotency key; `answers` are the codes of the next answers."""

    taken: dict[str, list]
    answers: list[int]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.answers.pop(0) if self.answers else 200
        if code == 200:
            self.taken.setdefault(self.headers["Idempotency-Key"], body)
        said = b"" if code == 200 else f"what is {body}?".encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_) -> None:
        pass


@contextmanager
def service() -> Iterator[tuple[str, type[Service]]]:
    kind = type("Fresh", (Service,), {"taken": {}, "answers": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/orders", kind
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_service_that_remembers_the_idempotency_key_has_every_record_once():
    with service() as (url, kind):

        def read(name):
            mine = [body for token, body in kind.taken.items() if f"/{name}/" in token]
            return [(row["key"], row["value"]) for body in mine for row in body]

        check_sink(lambda name: (HttpSink(url, max_records=2), lambda: read(name)))
        every = [(record.key, record.value) for some in sample_batches() for record in some]
        assert sorted(map(repr, read("undisturbed"))) == sorted(map(repr, every))
        assert all(len(body) <= 2 for body in kind.taken.values())
        assert sorted(map(repr, read("killed_0"))) == sorted(map(repr, every))


def test_a_service_that_fails_is_asked_again_and_one_that_rejects_says_which():
    record = Record("a", 1, 0)
    with service() as (url, kind), closing(HttpSink(url).open(context("http"))) as writer:
        kind.answers += [503, 422]
        with pytest.raises(SinkUnavailableError, match="answers 503"):
            writer.write(batch(1, record))
        with pytest.raises(RecordsRejectedError) as raised:
            writer.write(batch(1, record))
        assert raised.value.records[0][0] is record
        writer.write(batch(1, record))
        assert list(kind.taken) == ["shop/http/c1/0_0/1/0"]
    with (
        pytest.raises(SinkUnavailableError, match="does not answer"),
        closing(HttpSink(url).open(context("x"))) as writer,
    ):
        writer.write(batch(1, record))


@pytest.mark.parametrize("code", [503, 422, 403])
def test_the_answer_of_a_service_is_not_in_the_log(code):
    with service() as (url, kind), closing(HttpSink(url).open(context("http"))) as writer:
        kind.answers.append(code)
        with pytest.raises(StreamsError, match="4111") as raised:
            writer.write(batch(1, Record("a", 4111, 0)))
    assert summarize(raised.value).endswith(f"/orders answers {code}")


def test_the_password_in_the_address_of_a_service_is_not_in_its_name():
    sink = HttpSink("https://me:hunter2@hooks.example:8443/orders?x=1")
    assert sink.label == "hooks.example:8443/orders"
    assert "hunter2" not in repr(sink)


def read_log(address: str, topic: str) -> list[tuple[int, Any, Any]]:
    with closing(open_log(address, {})) as log:
        return [
            (at, row[1], row[2])
            for at in range(log.topic(topic).partitions)
            for chunk in log.read(TopicPartition(topic, at), 0)
            for row in chunk.rows()
        ]


def test_another_log_has_every_record_once_after_kills_at_every_step(tmp_path):
    address = f"file:{tmp_path}/other"

    def make(name):
        return LogSink(address, name, partitions=2), lambda: read_log(address, name)

    killed = check_sink(make)
    assert killed["before sink token"] == killed["after sink token"] == 2
    found = [(ROW.decode(key), value and ROW.decode(value)["n"]) for _, key, value in read_log(address, "undisturbed")]
    every = [(record.key, record.value and record.value["n"]) for some in sample_batches() for record in some]
    assert sorted(found, key=repr) == sorted(every, key=repr)


@pytest.mark.kafka
def test_records_go_to_kafka_with_their_partitions_headers_and_times(broker_address):
    sink = LogSink(broker_address, "mirrored", partitions=3)
    record = Record(b"k", b"v", 5, (("h", b"1"),))
    parts = tuple(SinkPart(f"0_{at}", at, [record], [(at,)]) for at in range(3))
    for _ in range(2):
        with closing(sink.open(context("mirror", "c2"))) as writer:
            writer.write(SinkBatch(4, parts))
    with closing(open_log(broker_address, {})) as log:
        rows = [list(chunk.rows()) for at in range(3) for chunk in log.read(TopicPartition("mirrored", at), 0, 1)]
    assert [[row[1:] for row in some] for some in rows] == [[(b"k", b"v", 5, (("h", b"1"),))]] * 3
