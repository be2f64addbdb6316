"""How a foreign-key join becomes nodes.

The left side subscribes, through a topic, to the right row that its foreign key names; the right side keeps the
subscriptions and answers, through another topic, now and whenever that row changes.

    left table ─ Subscribe ─▶ topic ─▶ SubscriptionReceive ─ SubscriptionJoin ─┐
                                            right table ──── ForeignUpdate ────┴─▶ topic ─▶ ResponseJoin ─ result
"""

from __future__ import annotations

from dataclasses import replace

from headrace.dsl.functions import Function, with_key
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


def join_on_foreign_key(
    left: Place, right: Place, joiner: Function, is_left: bool, options: TableJoinOptions
) -> tuple[Place, str | None]:
    """The joined table, and the name of its store."""
    on = options.get("on")
    assert on is not None
    send_old(right.step, keep=True)
    send_old(left.step, keep=True)
    subscription = _subscribe(left, right, with_key(on, "on="), is_left, options)
    answers = _answer(left, right, subscription, options)
    return _resolve(left, answers, joiner, is_left, options)


def _subscribe(left: Place, right: Place, on: Function, is_left: bool, options: TableJoinOptions) -> Step:
    """Subscriptions leave for the right side; gives the source that reads them there."""
    draft, name = left.draft, options.get("name")
    topic = left.named(name, REGISTRATION, "-subscription-registration") + "-topic"
    subscribe = Subscribe(
        left.named(name, REGISTRATION, "-subscription-registration-processor"), on, is_left, left.key, right.key, left.value
    )
    value = SubscriptionOf(left.key)
    sink = left.named(name, "KTABLE-SINK-", "-subscription-registration-sink")
    source = left.named(name, "KTABLE-SOURCE-", "-subscription-registration-source")
    sent = _add(left, left.step, subscribe)
    written = draft.add(Step(sink, Write(Sink(sink, topic, right.key, value, options.get("other_partitioner")))), sent)
    read = draft.add(Step(source, ReadStream(Source(source, (topic,), None, right.key, value))), written)
    draft.internal_topics.append(InternalTopic(topic))
    draft.copartition(right.sources, frozenset({source}))
    return read


def _answer(left: Place, right: Place, subscription: Step, options: TableJoinOptions) -> Step:
    """The right side answers; gives the source that reads the answers on the left side."""
    draft, name = left.draft, options.get("name")
    store = left.named(name, f"{PREFIX}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
    spec = StoreSpec(
        store, SubscriptionKind(), store_serde(right.key), store_serde(SubscriptionOf(left.key)), persistent=None
    )
    receive = SubscriptionReceive(left.named(name, PROCESSOR, "-subscription-receive"), store)
    received = _add(left, subscription, receive, spec)
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


def _resolve(
    left: Place, answers: Step, joiner: Function, is_left: bool, options: TableJoinOptions
) -> tuple[Place, str | None]:
    """Answers meet the left rows that asked."""
    draft, name = left.draft, options.get("name")
    sources = draft.copartition(left.sources, frozenset({answers.name}))
    looked_up = stores_to_look_up(left.step)
    resolver = left.named(name, f"{RESPONSE}RESOLVER-PROCESSOR-", "-subscription-response-resolver")
    node = ResponseJoin(resolver, left.name, joiner, is_left, left.value)
    joined = draft.add(Step(node.name, Operate(node, uses=looked_up)), answers)
    result = left.named(name, f"{PREFIX}OUTPUT-", "-result")
    given = with_serdes(materialized(options.get("store")), left.key, None)
    spec = table_store(given, named(given, draft.names, f"{PREFIX}OUTPUT-"))
    table = TableSource(result, given.name)
    step = draft.add(Step(result, Operate(table, (spec,)), versioned=given.history is not None), joined)
    return replace(left, step=step, name=result, value=given.value, sources=sources), spec.name


def _add(place: Place, parent: Step, node: Node, *stores: StoreSpec) -> Step:
    return place.draft.add(Step(node.name, Operate(node, stores)), parent)
