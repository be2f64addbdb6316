"""Secrets stay out of pages, errors and logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET = re.compile(r"pass(word|wd|phrase)?|secret|token|credential|api.?key|access.?key|jaas|private", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
_ASSIGNED = re.compile(
    r"""(?i)\b([\w.\-]*(?:password|passwd|secret|token|api[_.-]?key|access[_.-]?key)[\w.\-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;]+)"""
)


def masked(text: str) -> str:
    """A text without user names and passwords in addresses, and without what is given for a password or the like.

    >>> masked("kafka://me:pw@host:9092 sasl.password=abc")
    'kafka://***@host:9092 sasl.password=***'
    """
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(f"{HIDDEN}@", text))


def masked_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text, without those that are secret by their name.

    >>> masked_settings({"ssl.key.password": "abc", "application.id": "a"})
    {'application.id': 'a', 'ssl.key.password': '***'}
    """
    return {
        name: HIDDEN if _SECRET.search(name) else masked(str(value))
        for name, value in sorted(settings.items())
        if value is not None
    }
