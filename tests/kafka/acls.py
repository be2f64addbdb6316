"""What users of a broker may do."""

from __future__ import annotations

from typing import Any

import confluent_kafka.admin

from headrace.testing import KafkaBroker, assert_eventually

acls: Any = confluent_kafka.admin


def allow(broker: KafkaBroker, user: str, kind: str, name: str, *operations: str) -> None:
    """Lets a user do something with a topic, a group or a transactional id."""
    admin = _admin(broker)  # it must outlive the answers
    for future in admin.create_acls(_bindings(acls.AclBinding, user, kind, name, operations)).values():
        future.result(30)
    _await_broker(admin, _bindings(acls.AclBindingFilter, user, kind, name, operations), is_allowed=True)


def forbid(broker: KafkaBroker, user: str, kind: str, name: str, *operations: str) -> None:
    """Takes away what `allow` has given."""
    admin = _admin(broker)
    filters = _bindings(acls.AclBindingFilter, user, kind, name, operations)
    for future in admin.delete_acls(filters).values():
        assert future.result(30)
    _await_broker(admin, filters, is_allowed=False)


def _await_broker(admin: Any, filters: list[Any], *, is_allowed: bool) -> None:
    """Waits until the broker knows what its controller has answered."""
    for some in filters:
        assert_eventually(lambda some=some: bool(admin.describe_acls(some).result(30)) == is_allowed)


def _admin(broker: KafkaBroker) -> Any:
    return acls.AdminClient({"bootstrap.servers": broker.bootstrap})


def _bindings(make: Any, user: str, kind: str, name: str, operations: tuple[str, ...]) -> list[Any]:
    return [
        make(
            acls.ResourceType[kind], name, acls.ResourcePatternType.LITERAL, f"User:{user}", "*",
            acls.AclOperation[operation], acls.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip
