"""MQTT: a message for each record, acknowledged by the broker before the batch counts as delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.connect.redis_sink import as_bytes
from headrace.errors import SinkUnavailableError
from headrace.extras import import_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

_TIMEOUT = 30.0  # seconds for the broker to acknowledge a batch
_IN_FLIGHT = 100  # messages that wait for their acknowledgement


@dataclass(frozen=True)
class MqttSink(Sink):
    """Messages to `topic`, in which `{key}` is the record's key. A record without a value is an empty message.

    With QoS 1, the default, the broker has every message at least once. `retain` makes the broker keep the last one.
    The messages of a partition are in their order; of a large batch, several processes send different partitions.

    >>> MqttSink("broker", "sensors/{key}").label
    'sensors/{key}'
    """

    guarantee = "at least once"

    host: str
    topic: str
    port: int = 1883
    qos: int = 1
    retain: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return self.topic

    def open(self, context: SinkContext) -> SinkWriter:
        return MqttWriter(self)


class MqttWriter(SinkWriter):
    """One connection to the broker."""

    def __init__(self, sink: MqttSink) -> None:
        self._sink = sink
        mqtt: Any = import_extra("paho.mqtt.client", "mqtt")
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.max_queued_messages_set(0)
        if sink.username is not None:
            self._client.username_pw_set(sink.username, sink.password)
        self._client.connect(sink.host, sink.port)  # raises an OSError
        self._client.loop_start()

    def write(self, batch: SinkBatch) -> None:
        waiting: list[Any] = []
        for record in batch.records():
            topic = self._sink.topic.replace("{key}", as_bytes(record.key).decode() if record.key is not None else "")
            payload = b"" if record.value is None else as_bytes(record.value)
            waiting.append(self._client.publish(topic, payload, qos=self._sink.qos, retain=self._sink.retain))
            if len(waiting) >= _IN_FLIGHT:
                self._await(waiting)
        self._await(waiting)

    def _await(self, waiting: list[Any]) -> None:
        for message in waiting:
            try:
                message.wait_for_publish(_TIMEOUT)
            except (RuntimeError, ValueError) as error:
                raise SinkUnavailableError(f"the MQTT broker {self._sink.host} has broken off: {error}") from error
            if not message.is_published():
                raise SinkUnavailableError(f"the MQTT broker {self._sink.host} did not acknowledge a message")
        waiting.clear()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
