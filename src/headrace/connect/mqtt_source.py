"""Messages of an MQTT broker.

The source is a persistent session of quality of service 1: the broker keeps a message until it is acknowledged, which
happens when the log has it. After a crash in between the broker sends the message again, with the same packet number;
the position in the log has the numbers and digests of the last messages, so that such a message is not written again.
So every message that the broker keeps is written once. What a broker loses when it crashes is lost, and a message that
a publisher sends twice, because it got no acknowledgement, is written twice: both happen before the source.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from typing import Any

from headrace.errors import ConfigError
from headrace.extras import import_extra
from headrace.serde.primitives import BYTES, STRING
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord

_CONNECT_TIMEOUT = 10.0  # seconds
# Messages that the position knows at least: an acknowledgement may be lost together with the connection, and the broker
# then sends those again that it had in flight. Brokers have 10 to 50 in flight by default.
_REMEMBERED = 100


@dataclass(frozen=True)
class MqttSource:
    """Subscribes to the messages of MQTT topics: the key is the topic, the value the payload, as it is.

    `topics` may have wildcards, such as `sensors/+/temperature`. `client_id` names the session in the MQTT broker,
    which keeps messages while the source is away: choose one for each source. Give `value=` to read the payload as
    something else than bytes.

    >>> MqttSource("127.0.0.1", "sensors/#", client_id="shop-sensors").name
    'shop-sensors'
    """

    host: str
    topics: str
    _: KW_ONLY
    client_id: str
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    name: str = ""
    key: Serde[Any] = STRING
    value: Serde[Any] = BYTES

    def __post_init__(self) -> None:
        if not self.client_id:
            raise ConfigError("a session needs a client_id, which no other client has")
        if not self.name:
            object.__setattr__(self, "name", self.client_id)

    def open(self, position: SourcePosition) -> SourceReader:
        return _MqttReader(self, position or [])


class _MqttReader:
    """Position: packet number and digest of each of the last messages."""

    def __init__(self, source: MqttSource, position: list[list[Any]]) -> None:
        mqtt: Any = import_extra("paho.mqtt.client", "mqtt")
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last = [*map(tuple, position)]
        self._known = set(self._last)  # before this session: only these can be sent again, within it nothing is
        self._unacknowledged: list[Any] = []
        self._failure: str | None = None
        self._is_subscribed = False
        client: Any = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=source.client_id,
            clean_session=False,
            manual_ack=True,
            reconnect_on_failure=False,  # a new reader connects, behind the position that the log has
        )
        if source.username is not None:
            client.username_pw_set(source.username, source.password)
        if source.tls:
            client.tls_set()
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_disconnect, client.on_message = self._on_disconnect, self._on_message
        self._client, self._topics = client, source.topics
        client.connect(source.host, source.port)
        client.loop_start()
        end = time.monotonic() + _CONNECT_TIMEOUT
        while not self._is_subscribed:
            if self._failure is not None or time.monotonic() > end:
                self.close()
                raise ConnectionError(f"the MQTT broker {source.host}:{source.port}: {self._failure or 'no answer'}")
            time.sleep(0.01)

    def _on_connect(self, client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        if reason.is_failure:
            self._fail(str(reason))
        else:
            client.subscribe(self._topics, qos=1)

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        self._fail(f"disconnected: {reason}")

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        self._messages.put(message)

    def _on_subscribe(self, _client: Any, _data: Any, _number: int, reasons: list[Any], _more: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._fail(f"the subscription was refused: {reasons[0]}")
        self._is_subscribed = True

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        if self._failure is not None:
            raise ConnectionError(f"the MQTT broker: {self._failure}")
        taken: list[Any] = []
        with suppress(queue.Empty):
            taken.append(self._messages.get(timeout=timeout or 0.05))
            while len(taken) < max_records:
                taken.append(self._messages.get_nowait())
        if not taken:
            return None
        self._unacknowledged = taken
        new = [message for message in taken if not self._was_written(message)]
        self._last = [*self._last, *((message.mid, _digest(message)) for message in taken if message.qos)]
        self._last = self._last[-max(_REMEMBERED, len(taken)) :]
        now = time.time_ns() // 1_000_000
        records = [SourceRecord(message.topic, bytes(message.payload), now) for message in new]
        return SourceBatch(records, [*map(list, self._last)])

    def _was_written(self, message: Any) -> bool:
        return bool(message.dup) and (message.mid, _digest(message)) in self._known

    def acknowledge(self, position: SourcePosition) -> None:
        for message in self._unacknowledged:
            self._client.ack(message.mid, message.qos)
        self._unacknowledged = []

    def lag(self) -> int | None:
        return self._messages.qsize()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _digest(message: Any) -> str:
    return sha256(message.topic.encode() + b"\0" + bytes(message.payload)).hexdigest()[:16]
