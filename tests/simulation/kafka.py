"""A model of Kafka's transactions, under the real classes that deliver batches and shares of them.

The broker keeps what matters for exactly-once: epochs of transactional ids, open and ending transactions, and the last
stable offset of every partition. Committing is two steps, as in Kafka: the coordinator decides, which is certain, and
then every partition gets the end of the transaction, each at its own time. Until then readers see nothing behind it.

    init_transactions   a new epoch: earlier producers are fenced, and their open transaction is aborted
    produce, flush      records of an open transaction, which readers do not see
    commit_transaction  the answer may be lost, late, or "busy"; the broker aborts transactions that take too long
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.log.kafka.clients import ClientSettings, kafka
from headrace.log.kafka.delivery import BatchDelivery, ShareDelivery
from headrace.log.kafka.markers import MarkerTopics, marker_partition, parse_markers
from headrace.log.kafka.producer import RecordChecker
from headrace.log.protocol import Chunk, Extent, Item, Records, Share, Topic
from headrace.model.ids import TopicPartition
from tests.simulation.faults import Faults
from tests.simulation.log import Row, SimulatedLog, StoredLog
from tests.simulation.scheduler import Process, Scheduler

CLIENT_PAUSE = 0.1  # seconds
TRANSACTION_TIMEOUTS = [10.0, 60.0]  # seconds, one of them in a run
CONFIG = {"max.message.bytes": "1000000", "cleanup.policy": "delete"}
_Error = kafka.KafkaError


@dataclass
class Transaction:
    """A transaction of a transactional id. It has ended where its partitions have got its end."""

    began: float
    state: str = "open"  # then committed or aborted, which is certain
    partitions: set[TopicPartition] = field(default_factory=set[TopicPartition])
    ended: set[TopicPartition] = field(default_factory=set[TopicPartition])

    @property
    def is_over(self) -> bool:
        return self.state != "open" and self.partitions <= self.ended


@dataclass
class ProducerState:
    """What the coordinator knows of a transactional id."""

    epoch: int = 0
    transaction: Transaction | None = None


class Broker(StoredLog):
    """The cluster: partitions of records, each with the transaction that it belongs to."""

    def __init__(self, topics: Mapping[str, int], scheduler: Scheduler, faults: Faults) -> None:
        super().__init__(topics)
        self.topics = {name: Topic(name, f"id of {name}", count, CONFIG) for name, count in topics.items()}
        self._scheduler, self._faults = scheduler, faults
        self._timeout = scheduler.random.choice(TRANSACTION_TIMEOUTS)
        self.entries = defaultdict[TopicPartition, list[tuple[Row, Transaction]]](list)
        self.producers = defaultdict[str, ProducerState](ProducerState)
        self._hidden: dict[TopicPartition, tuple[float, int]] = {}  # until when, and the end that is shown meanwhile

    # ------------------------------------------------------------------------------------------------- transactions
    def init(self, transactional_id: str) -> int:
        """Begins an epoch; raises if the last transaction has not ended everywhere."""
        state = self.producers[transactional_id]
        transaction = state.transaction
        if transaction is not None and transaction.state == "open":
            state.epoch += 1  # fences the producer at once
            self.end(transactional_id, "aborted")
        if transaction is not None and not transaction.is_over:
            raise _failure(_Error.CONCURRENT_TRANSACTIONS, retriable=True)
        state.epoch += 1
        state.transaction = None
        return state.epoch

    def check_epoch(self, transactional_id: str, epoch: int) -> ProducerState:
        state = self.producers[transactional_id]
        if state.epoch != epoch:
            raise _failure(_Error._FENCED, fatal=True)
        return state

    def add(self, transactional_id: str, epoch: int, records: Sequence[tuple[TopicPartition, Row]]) -> list[int]:
        """Adds records to the transaction, which begins with the first ones."""
        state = self.check_epoch(transactional_id, epoch)
        if state.transaction is not None and state.transaction.state != "open":
            if not state.transaction.is_over:
                raise _failure(_Error.CONCURRENT_TRANSACTIONS, retriable=True)
            state.transaction = None
        if state.transaction is None:
            state.transaction = begun = Transaction(self._scheduler.now)
            self._scheduler.after(self._timeout, lambda: self._time_out(transactional_id, begun))
        offsets: list[int] = []
        for at, row in records:
            state.transaction.partitions.add(at)
            offsets.append(len(self.entries[at]))
            self.entries[at].append((row, state.transaction))
        return offsets

    def _time_out(self, transactional_id: str, transaction: Transaction) -> None:
        if transaction.state == "open":
            self._scheduler.note(f"the broker aborts the transaction of {transactional_id}")
            self.producers[transactional_id].epoch += 1
            self.end(transactional_id, "aborted")

    def end(self, transactional_id: str, how: str) -> None:
        """Decides a transaction. Its partitions learn it later, each at its own time."""
        transaction = self.producers[transactional_id].transaction
        if transaction is None or transaction.state != "open":
            return
        transaction.state = how
        random = self._scheduler.random
        self._scheduler.note(f"the transaction of {transactional_id} is {how}")
        for at in sorted(transaction.partitions):
            is_late = self._faults.happens("the end of a transaction is delayed")
            delay = random.uniform(0.5, 30.0) if is_late else random.expovariate(300)
            self._scheduler.after(delay, lambda at=at: transaction.ended.add(at))

    # ------------------------------------------------------------------------------------------------------- readers
    def stable_end(self, at: TopicPartition) -> int:
        """The last stable offset: readers see what is before it."""
        if at.topic not in self.topics or at not in self.entries:
            return len(self.rows[at])
        entries = self.entries[at]
        end = next((offset for offset, (_, some) in enumerate(entries) if at not in some.ended), len(entries))
        until, shown = self._hidden.get(at, (0.0, 0))
        return min(end, shown) if self._scheduler.now < until else end

    def hide(self) -> None:
        """A broker that has restarted shows for a moment an end that it had before."""
        if any(until + 10.0 > self._scheduler.now for until, _ in self._hidden.values()):
            return
        for at, entries in self.entries.items():
            seconds = self._scheduler.random.uniform(0.0, 3.0)
            self._hidden[at] = (self._scheduler.now + seconds, max(0, len(entries) - 3))

    def visible(self, at: TopicPartition, start: int, end: int) -> list[tuple[int, Row]]:
        if at not in self.entries:
            return list(enumerate(self.rows[at]))[start:end]
        some = list(enumerate(self.entries[at]))[start : min(end, self.stable_end(at))]
        return [(offset, row) for offset, (row, transaction) in some if transaction.state == "committed"]

    def delivered(self, application: str) -> int:
        """The marker, whether readers see it already or not."""
        at = marker_partition(application)
        rows = [row for row, some in self.entries.get(at, []) if some.state == "committed" and at in some.ended]
        found = parse_markers(((offset, *row) for offset, row in enumerate(rows)), at)
        return -1 if found is None else found.last

    def append(self, items: Sequence[Item]) -> list[int]:
        """Stores records without a transaction."""
        bases: list[int] = []
        for item in items:
            at = item[0]
            super().append([item])
            bases.append(len(self.entries[at]))
            self.entries[at] += [(row, Transaction(0.0, "committed", {at}, {at})) for row in self.rows.pop(at)]
        return bases

    def written(self, topic: str) -> list[list[Row]]:
        places = [TopicPartition(topic, part) for part in range(self.topics[topic].partitions)]
        return [[row for row, some in self.entries[at] if some.state == "committed"] for at in places]

    def connect(self, process: Process, faults: Faults, *, stores_chunks: bool) -> Any:
        return KafkaLogOfProcess(self, process, faults)


def _failure(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> Exception:
    return kafka.KafkaException(_Error(code, None, fatal, retriable, abort))


class _Message:
    def __init__(self, at: TopicPartition, offset: int) -> None:
        self._at, self._offset = at, offset

    def topic(self) -> str:
        return self._at.topic

    def partition(self) -> int:
        return self._at.partition

    def offset(self) -> int:
        return self._offset


class SimulatedProducer:
    """What `TransactionalProducer` uses of the client library's producer."""

    def __init__(self, broker: Broker, process: Process, faults: Faults, config: Mapping[str, Any]) -> None:
        self._broker, self._process, self._faults = broker, process, faults
        self._id, self._epoch = config["transactional.id"], -1
        self._is_of_share = self._id[-1].isdigit()
        self._queue: list[tuple[TopicPartition, Row, Any]] = []
        self._is_decided = False  # the end of the transaction was accepted, but the answer was lost
        self._failed: Exception | None = None

    def _pass_time(self) -> None:
        random = self._process.scheduler.random
        is_slow, driver = self._faults.happens("log is slow"), self._process.parent
        if self._is_of_share and driver is not None and self._faults.happens("a share outlives its driver"):
            is_slow = self._process.outlives_parent = True
            self._process.scheduler.after(0.0, driver.kill)
        self._process.sleep(random.uniform(0.2, 15.0) if is_slow else random.expovariate(500))

    def _ask(self, what: str) -> None:
        self._process.check()
        self._process.scheduler.note(f"{self._process} {what} as {self._id}")
        self._pass_time()
        if self._faults.happens("the broker is busy"):
            raise _failure(_Error.COORDINATOR_NOT_AVAILABLE, retriable=True)

    def init_transactions(self, timeout: float) -> None:
        end = self._process.scheduler.now + timeout
        while True:
            self._ask("begins an epoch")
            try:
                epoch = self._broker.init(self._id)
                break
            except kafka.KafkaException:  # the last transaction is being ended: the client asks again by itself
                if self._process.scheduler.now + CLIENT_PAUSE > end:
                    raise
                self._process.sleep(CLIENT_PAUSE)
        self._pass_time()
        if self._faults.happens("the broker loses an answer"):
            raise _failure(_Error._TIMED_OUT, retriable=True)
        self._epoch = epoch

    def begin_transaction(self) -> None:
        self._process.check()
        self._queue, self._is_decided, self._failed = [], False, None

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, callback: Any, _: None, time: int, headers: Any
    ) -> None:
        if self._failed is not None:
            raise _failure(_Error._STATE)
        row = (key, value, 0 if time == -1 else time, tuple(map(tuple, headers)))
        self._queue.append((TopicPartition(topic, partition), row, callback))

    def poll(self, timeout: float = 0.0) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        try:
            self._send()
        except kafka.KafkaException as error:
            self._failed = error if error.args[0].fatal() else self._failed
        return len(self._queue)

    def _send(self) -> None:
        if self._queue and self._failed is None:
            self._ask("sends records")
            if self._faults.happens("the broker aborts a transaction"):
                self._failed = _failure(_Error.NOT_ENOUGH_REPLICAS, abort=True)
                return
            sent, self._queue = self._queue, []
            try:
                offsets = self._broker.add(self._id, self._epoch, [(at, row) for at, row, _ in sent])
            except kafka.KafkaException:
                self._queue = sent
                raise
            self._pass_time()
            for (at, _, callback), offset in zip(sent, offsets, strict=True):
                if callback is not None:
                    callback(None, _Message(at, offset))

    def commit_transaction(self, timeout: float) -> None:
        if self._is_decided:
            return
        self._send()
        if self._failed is not None:
            raise self._failed
        self._ask("commits")
        self._broker.check_epoch(self._id, self._epoch)
        self._broker.end(self._id, "committed")
        self._pass_time()
        self._is_decided = True
        if self._faults.happens("the broker loses an answer"):
            # The client repeats the request, or has given up and does not know what became of it.
            is_retried = self._process.scheduler.random.random() < 0.5
            raise _failure(_Error._TIMED_OUT, retriable=is_retried)

    def abort_transaction(self, timeout: float) -> None:
        self._ask("aborts")
        self._broker.check_epoch(self._id, self._epoch)
        self._broker.end(self._id, "aborted")

    def purge(self) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> None:
        pass


class _Topics:
    """What deliveries use of `log.kafka.topics.Topics`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def find(self, names: Sequence[str]) -> dict[str, Topic | None]:
        return {name: self._broker.topics.get(name) for name in names}

    def get(self, *names: str) -> dict[str, Topic]:
        return {name: self._broker.topics[name] for name in names}

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        self._broker.topics.setdefault(name, Topic(name, f"id of {name}", partitions, CONFIG | dict(config)))

    def find_unwritable(self, names: Sequence[str]) -> list[str]:
        return []


class _Reader:
    """What deliveries use of `log.kafka.reader.PartitionReader`: it reads what is committed."""

    def __init__(self, log: KafkaLogOfProcess) -> None:
        self._log = log

    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._log.extents(topics)

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self._log._pass_time()
        return {at: self._log.broker.stable_end(at) for at in partitions}

    def read(self, at: TopicPartition, start: int, end: int) -> Iterator[Chunk]:
        return self._log.read(at, start, end)


class KafkaLogOfProcess(SimulatedLog):
    """The log of one process: records as in the model, deliveries by the real classes."""

    def __init__(self, broker: Broker, process: Process, faults: Faults) -> None:
        super().__init__(broker, process, faults, stores_chunks=False)
        self.broker = broker
        settings = ClientSettings(
            "simulated:9092",
            {"default.api.timeout.ms": 40_000},
            threads=process,
            make_client=lambda kind, config: SimulatedProducer(broker, process, faults, config),
        )
        topics: Any = _Topics(broker)
        reader: Any = _Reader(self)
        markers, checker = MarkerTopics(topics, reader, settings, self.append), RecordChecker(topics)
        self._batches = BatchDelivery(settings, topics, markers, checker)
        self._shares = ShareDelivery(settings, topics, markers, checker)

    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        self._ask("asks for the extents")
        places = [TopicPartition(name, part) for name in topics for part in range(self.topic(name).partitions)]
        return {at: Extent(0, self.broker.stable_end(at)) for at in places}

    def read(self, at: TopicPartition, start: int, end: int | None = None, **options: Any) -> Iterator[Chunk]:
        self._ask(f"reads {at} from {start}")
        found = self.broker.visible(at, start, 1 << 62 if end is None else end)
        yield Chunk([offset for offset, _ in found], Records.from_rows([row for _, row in found]))

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        return self._batches.begin(application, number, items)

    def delivered(self, application: str) -> int:
        return self._batches.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._batches.mark(application, number)

    def begin_shares(self, application: str, number: int, shares: int) -> str | None:
        return self._batches.begin_shares(application, number, shares)

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        return self._shares.deliver(application, share, items)

    def close(self) -> None:
        self._batches.close()
        self._shares.close()
