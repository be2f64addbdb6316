"""How a foreign-key join becomes nodes.

The left side subscribes, through a topic, to the right row that its foreign key names; the right side keeps the
subscriptions and answers, through another topic, now and whenever that row changes.

    left table ─ Subscribe ─▶ topic ─▶ SubscriptionReceive ─ SubscriptionJoin ─┐
                                            right table ──── ForeignUpdate ────┴─▶ topic ─▶ ResponseJoin ─ result
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.dsl.functions import Function
from headrace.dsl.lookup import send_old, stores_to_look_up
from headrace.dsl.place import Place
from headrace.dsl.steps import Operate, ReadStream, Step, Write
from headrace.dsl.stores import materialized, named, store_serde, table_store, with_serdes
from headrace.dsl.table_joins import TableJoinOptions
from headrace.state.spec import StoreSpec, SubscriptionKind
from headrace.topology.graph import InternalTopic
from headrace.topology.nodes import (
    ForeignUpdate,
    Node,
    ResponseJoin,
    Sink,
    Source,
    Subscribe,
    SubscriptionJoin,
    SubscriptionReceive,
    TableSource,
)
from headrace.topology.serdes import ResponseOf, SubscriptionOf

PREFIX = "KTABLE-FK-JOIN-"
REGISTRATION = f"{PREFIX}SUBSCRIPTION-REGISTRATION-"
RESPONSE = f"{PREFIX}SUBSCRIPTION-RESPONSE-"
PROCESSOR = f"{PREFIX}SUBSCRIPTION-PROCESSOR-"


@dataclass(frozen=True, slots=True)
class ForeignPair:
    """The two tables; `on` gives the foreign key of a left row."""

    left: Place
    right: Place
    on: Function
    joiner: Function
    is_left: bool  # a left row without partner comes out too


def join_on_foreign_key(pair: ForeignPair, options: TableJoinOptions) -> tuple[Place, str]:
    """The joined table, and the name of its store."""
    send_old(pair.right.step, keep=True)
    send_old(pair.left.step, keep=True)
    subscriptions = _subscribe(pair, options)
    answers = _answer(pair, subscriptions, options)
    return _resolve(pair, answers, options)


def _subscribe(pair: ForeignPair, options: TableJoinOptions) -> Step:
    """Subscriptions leave for the right side; gives the source that reads them there."""
    left, right, draft, name = pair.left, pair.right, pair.left.draft, options.get("name")
    topic = left.named(name, REGISTRATION, "-subscription-registration") + "-topic"
    node = left.named(name, REGISTRATION, "-subscription-registration-processor")
    sink = left.named(name, "KTABLE-SINK-", "-subscription-registration-sink")
    source = left.named(name, "KTABLE-SOURCE-", "-subscription-registration-source")
    value = SubscriptionOf(left.key)
    sent = _add(left, left.step, Subscribe(node, pair.on, pair.is_left, left.key, right.key, left.value))
    written = draft.add(Step(sink, Write(Sink(sink, topic, right.key, value, options.get("other_partitioner")))), sent)
    read = draft.add(Step(source, ReadStream(Source(source, (topic,), None, right.key, value))), written)
    draft.internal_topics.append(InternalTopic(topic))
    draft.copartition(right.sources, frozenset({source}))
    return read


def _answer(pair: ForeignPair, subscriptions: Step, options: TableJoinOptions) -> Step:
    """The right side answers; gives the source that reads the answers on the left side."""
    left, right, draft, name = pair.left, pair.right, pair.left.draft, options.get("name")
    store = left.named(name, f"{PREFIX}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
    kept = store_serde(right.key), store_serde(SubscriptionOf(left.key))
    spec = StoreSpec(store, SubscriptionKind(), *kept, persistent=None)
    receive = SubscriptionReceive(left.named(name, PROCESSOR, "-subscription-receive"), store)
    received = _add(left, subscriptions, receive, spec)
    looked_up = stores_to_look_up(right.step)
    join = SubscriptionJoin(left.named(name, PROCESSOR, "-subscription-join-foreign"), right.name)
    joined = draft.add(Step(join.name, Operate(join, uses=looked_up)), received)
    update = ForeignUpdate(left.named(name, PROCESSOR, "-foreign-join-subscription"), store)
    updated = _add(left, right.step, update, spec)
    topic = left.named(name, RESPONSE, "-subscription-response") + "-topic"
    value = ResponseOf(right.value)
    sink = left.named(name, "KTABLE-SINK-", "-subscription-response-sink")
    written = Step(sink, Write(Sink(sink, topic, left.key, value, options.get("partitioner"))))
    draft.add(written, joined, updated)
    source = left.named(name, "KTABLE-SOURCE-", "-subscription-response-source")
    draft.internal_topics.append(InternalTopic(topic))
    return draft.add(Step(source, ReadStream(Source(source, (topic,), None, left.key, value))), written)


def _resolve(pair: ForeignPair, answers: Step, options: TableJoinOptions) -> tuple[Place, str]:
    """Answers meet the left rows that asked."""
    left, draft, name = pair.left, pair.left.draft, options.get("name")
    sources = draft.copartition(left.sources, frozenset({answers.name}))
    looked_up = stores_to_look_up(left.step)
    resolver = left.named(name, f"{RESPONSE}RESOLVER-PROCESSOR-", "-subscription-response-resolver")
    node = ResponseJoin(resolver, left.name, pair.joiner, pair.is_left, left.value)
    joined = draft.add(Step(node.name, Operate(node, uses=looked_up)), answers)
    result = left.named(name, f"{PREFIX}OUTPUT-", "-result")
    given = with_serdes(materialized(options.get("store")), left.key, None)
    spec = table_store(given, named(given, draft.names, f"{PREFIX}OUTPUT-"))
    table = TableSource(result, given.name)
    step = draft.add(Step(result, Operate(table, (spec,)), versioned=given.history is not None), joined)
    return replace(left, step=step, name=result, value=given.value, sources=sources), spec.name


def _add(place: Place, parent: Step, node: Node, *stores: StoreSpec) -> Step:
    return place.draft.add(Step(node.name, Operate(node, stores)), parent)
