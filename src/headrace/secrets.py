"""Secrets: keep passwords and tokens out of errors, logs, pages and the output of commands.

Every error of Headrace masks its own message, so that no place that shows an error has to think of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|api.?key|access.?key|jaas|private|user.?info", re.IGNORECASE
)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_ASSIGNMENT = re.compile(
    r"""(?i)\b([\w.\-]*(?:password|passwd|passphrase|secret|token|credential|api[_.-]?key|access[_.-]?key|account[_.-]?key|jaas|user[_.-]?info)"""
    r"""[\w.\-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&]+)"""
)


def mask_secrets(text: str) -> str:
    """Replace the users and passwords in URLs, and the values that are assigned to secret names.

    >>> mask_secrets("kafka://me:pw@host:9092 sasl.password=abc")
    'kafka://***@host:9092 sasl.password=***'
    >>> mask_secrets("s3://bucket/shop?secret_access_key=abc&region=eu")
    's3://bucket/shop?secret_access_key=***&region=eu'
    """
    return _ASSIGNMENT.sub(rf"\1{MASK}", _USER_IN_URL.sub(f"{MASK}@", text))


def mask_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, with the values of secret names masked.

    >>> mask_settings({"ssl.key.password": "abc", "application.id": "a"})
    {'application.id': 'a', 'ssl.key.password': '***'}
    """
    return {
        name: MASK if _SECRET_NAME.search(name) else mask_secrets(str(value))
        for name, value in sorted(settings.items())
        if value is not None
    }
