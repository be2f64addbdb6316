"""Secrets: keep passwords and tokens out of errors, logs, pages and the output of commands.

Every error of Headrace masks its own message, so that no place that shows an error has to think of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|api.?key|access.?key|jaas|private|user.?info|key.pem|keystore.key",
    re.IGNORECASE,
)
# Passwords may contain "@" and, where there is a colon before that is not the one of a port, "/".
_PASSWORD_IN_URL = re.compile(r"""(?<=://)[^\s/@:"']*:(?!\d+(?:[/\s,"']|$))[^\s"']*@""")
_USER_IN_URL = re.compile(r"""(?<=://)[^/\s"']+@""")
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)(?=[\w.~+/=\-]*\d)[\w.~+/=\-]{12,}")
_ASSIGNMENT = re.compile(
    r"""(?i)\b([\w.\-]*(?:password|passwd|passphrase|secret|token|credential|api[_.-]?key|access[_.-]?key|account[_.-]?key|signature|jaas|user[_.-]?info)"""
    r"""[\w.\-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&]+)"""
)


def mask_secrets(text: str) -> str:
    """Replace the users and passwords in URLs, and the values that are assigned to secret names.

    >>> mask_secrets("kafka://me:pw@host:9092 sasl.password=abc")
    'kafka://***@host:9092 sasl.password=***'
    >>> mask_secrets("s3://bucket/shop?secret_access_key=abc&region=eu")
    's3://bucket/shop?secret_access_key=***&region=eu'
    >>> mask_secrets("postgresql://me:p@ss/word@host/shop, http://host:8080/me@home")
    'postgresql://***@host/shop, http://host:8080/me@home'
    """
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USER_IN_URL.sub(f"{MASK}@", _PASSWORD_IN_URL.sub(f"{MASK}@", text))
    return _BEARER.sub(rf"\1{MASK}", _ASSIGNMENT.sub(rf"\1{MASK}", text))


def has_credentials(address: str) -> bool:
    """Returns True if an address has a password, or an option that is one.

    >>> has_credentials("kafka://me:pw@host:9092"), has_credentials("s3://bucket/shop?secret_access_key=abc")
    (True, True)
    >>> has_credentials("kafka://one:9092,two:9092"), has_credentials("s3://bucket/shop?region=eu")
    (False, False)
    """
    return bool(_PASSWORD_IN_URL.search(address) or _ASSIGNMENT.search(address))


def is_secret(name: str) -> bool:
    """Returns True if the value of a setting is a password or a key, by its name.

    >>> is_secret("sasl.password"), is_secret("ssl.key.pem"), is_secret("ssl.key.location"), is_secret("num.partitions")
    (True, True, False, False)
    """
    return _SECRET_NAME.search(name) is not None


def mask_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, with the values of secret names masked.

    >>> mask_settings({"ssl.key.password": "abc", "application.id": "a"})
    {'application.id': 'a', 'ssl.key.password': '***'}
    """
    return {
        name: MASK if is_secret(name) else mask_secrets(str(value))
        for name, value in sorted(settings.items())
        if value is not None
    }


class MaskingFormatter(logging.Formatter):
    """Masks passwords and tokens in every line of the log, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record))


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Writes the program's log to the standard error, with times and levels, unless the program has set up its log."""
    logging.basicConfig(level=level, handlers=[_make_handler()])


def log_own_lines() -> None:
    """Gives Headrace's own lines times and levels in a program that has not set up its log."""
    own = logging.getLogger("headrace")
    if not own.handlers and not logging.getLogger().handlers:
        own.addHandler(_make_handler())


def _make_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter("%(asctime)s %(levelname)s %(message)s"))
    return handler
