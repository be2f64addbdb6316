"""What users of a broker may do."""

from __future__ import annotations

from typing import Any

import confluent_kafka.admin

from headrace.testing import KafkaBroker

acls: Any = confluent_kafka.admin


def allow(broker: KafkaBroker, user: str, kind: str, name: str, *operations: str) -> None:
    """Lets a user do something with a topic, a group or a transactional id."""
    admin = _admin(broker)  # it must outlive the answers
    for future in admin.create_acls(_bindings(acls.AclBinding, user, kind, name, operations)).values():
        future.result(30)


def forbid(broker: KafkaBroker, user: str, kind: str, name: str, *operations: str) -> None:
    """Takes away what `allow` has given."""
    admin = _admin(broker)
    for future in admin.delete_acls(_bindings(acls.AclBindingFilter, user, kind, name, operations)).values():
        assert future.result(30)


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
