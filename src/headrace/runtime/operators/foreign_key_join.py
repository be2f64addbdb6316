"""Joins of two tables by a foreign key.

The left side sends the right side a *subscription* for every row: "tell me about this foreign key". The right side
keeps subscriptions, answers each one with the current right value, and sends every change of a right value to its
subscribers. The left side joins an answer with the left value, if that value is still the one that subscribed.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from headrace.model.record import Change, Headers
from headrace.runtime.environment import Emit, Env
from headrace.serde.internal import Instruction, Response, Subscription
from headrace.serde.protocol import Serde
from headrace.state.key_value import Subscriptions
from headrace.topology.nodes import ForeignUpdate, ResponseJoin, Subscribe, SubscriptionJoin

DELETE, DELETE_AND_TELL = Instruction.DELETE_KEY_NO_PROPAGATE, Instruction.DELETE_KEY_AND_PROPAGATE
ANSWER_IF_FOUND = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE
ANSWER_ALWAYS = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE


def hash_of(value: Serde) -> Callable[[Any], bytes | None]:
    """Hashes a value of the left table, so that a response to an older value is not joined with a newer one."""
    encode = value.encode
    return lambda v: None if v is None else blake2b(encode(v), digest_size=16).digest()


def subscribe(node: Subscribe, foreign_key: Serde, value_serde: Serde, partition: int, env: Env, emit: Emit) -> Emit:
    """`partition` is that of the task; a record of a topic that has grown may come from another partition."""
    on, drop, versioned, encode = node.on, env.drop, node.versioned, foreign_key.encode
    digest = hash_of(value_serde)

    def changed(new: Any, old: Any) -> bool:
        return new is None or encode(new) != encode(old)

    def inner(new: Any, old_key: Any, new_key: Any) -> list[tuple[Any, Instruction]]:
        if new is None:
            return [] if old_key is None else [(old_key, DELETE_AND_TELL)]
        if new_key is None:
            drop("null foreign key")
            return [] if old_key is None else [(old_key, DELETE_AND_TELL)]
        if old_key is not None and changed(new_key, old_key):
            return [(old_key, DELETE), (new_key, ANSWER_ALWAYS)]
        return [(new_key, ANSWER_IF_FOUND)]

    def left(new: Any, old_key: Any, new_key: Any) -> list[tuple[Any, Instruction]]:
        unsubscribe = old_key is not None and changed(new_key, old_key)
        return [*([(old_key, DELETE)] if unsubscribe else []), (new_key, ANSWER_ALWAYS)]

    instructions = left if node.left else inner

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new, old, latest = value
        if versioned and not latest:
            drop("older version")
            return
        if node.left and new is None and old is None:
            return
        old_key = None if old is None else on(key, old)
        new_key = None if new is None else on(key, new)
        for foreign, instruction in instructions(new, old_key, new_key):
            emit(foreign, Subscription(digest(new), instruction, key, partition), timestamp, headers)

    return run


def receive(store: Subscriptions, env: Env, emit: Emit) -> Emit:
    drop = env.drop

    def run(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if key is None:
            if value.instruction != ANSWER_ALWAYS:
                drop("null foreign key")
                return
        elif value.instruction in (DELETE, DELETE_AND_TELL):
            store.remove(key, value.primary_key)
        else:
            store.add(key, value)
        emit(key, value, timestamp, headers)

    return run


def answer(node: SubscriptionJoin, env: Env, emit: Emit) -> Emit:
    get = env.lookup(node.table).get

    def run(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        found = None if key is None else get(key)
        right = found and found[0]
        if value.instruction == DELETE or (value.instruction == ANSWER_IF_FOUND and found is None):
            return
        if value.instruction == DELETE_AND_TELL:
            right = None
        time = timestamp if found is None else max(timestamp, found[1])
        emit(value.primary_key, Response(value.hash, right, value.primary_partition), time, headers)

    return run


def back_to_asker(topic: str, key: Any, value: Response, partitions: int) -> int | None:
    """Sends a response to the partition that its subscription came from, however the left table is partitioned."""
    return value.primary_partition


def foreign_update(node: ForeignUpdate, store: Subscriptions, env: Env, emit: Emit) -> Emit:
    drop, versioned = env.drop, node.versioned

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if versioned and not value[2]:
            drop("older version")
            return
        for subscription in store.of(key):
            response = Response(subscription.hash, value[0], subscription.primary_partition)
            emit(subscription.primary_key, response, timestamp, headers)

    return run


def respond(node: ResponseJoin, value_serde: Serde, env: Env, emit: Emit) -> Emit:
    get, joiner, left, drop = env.lookup(node.table).get, node.joiner, node.left, env.drop
    digest = hash_of(value_serde)

    def run(key: Any, value: Response, timestamp: int, headers: Headers) -> None:
        current = get(key)
        ours = current and current[0]
        if digest(ours) != value.hash:
            drop("stale response")
            return
        alone = value.value is None and (not left or ours is None)
        emit(key, None if alone else joiner(ours, value.value), timestamp, headers)

    return run
