"""What users of a broker may do."""

from __future__ import annotations

from typing import Any

import confluent_kafka.admin

from headrace.testing import KafkaBroker

acls: Any = confluent_kafka.admin


def allow(broker: KafkaBroker, user: str, kind: str, name: str, *operations: str) -> None:
    """Lets a user do something with a topic, a group or a transactional id."""
    admin = acls.AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [
        acls.AclBinding(
            acls.ResourceType[kind], name, acls.ResourcePatternType.LITERAL, f"User:{user}", "*",
            acls.AclOperation[operation], acls.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip
    for future in admin.create_acls(wanted).values():
        future.result(30)
