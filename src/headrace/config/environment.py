"""Settings that come from environment variables: `HEADRACE_COMMIT_INTERVAL_MS` is `commit.interval.ms`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

PREFIX = "HEADRACE_"
# Variables with the same prefix that are not settings of an application: options of commands, tests and tools.
OF_TOOLS = frozenset(
    PREFIX + name
    for name in (
        "BROKER", "CHECKPOINT", "DEBUG", "EXAMPLES", "FAULTS", "HOME", "LOG", "PROFILE", "SEED", "STEPS", "TOKEN",
        "URL", "WITHOUT_BROWSER",
    )
)  # fmt: skip
_log = logging.getLogger(__name__)
_named: set[str] = set()  # variables that this process has named in the log


def settings_in(
    environment: Mapping[str, str], names: Iterable[str], client_prefixes: tuple[str, ...]
) -> dict[str, str]:
    """The settings that environment variables give; a variable that looks like a misspelt one is named once in the log.

    >>> variables = {"HEADRACE_NUM_PARTITIONS": "3", "HEADRACE_SASL_USERNAME": "ada", "HOME": "/root"}
    >>> settings_in(variables, ["num.partitions"], ("sasl.",))
    {'num.partitions': '3', 'sasl.username': 'ada'}
    """
    known = {variable_of(name): name for name in names}
    found: dict[str, str] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in OF_TOOLS:
            continue
        dotted = variable.removeprefix(PREFIX).lower().replace("_", ".")
        if variable in known:
            found[known[variable]] = value
        elif dotted.startswith(client_prefixes):
            found[dotted] = value
        else:
            _warn_once(variable, [*known, *OF_TOOLS])
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("commit.interval.ms")
    'HEADRACE_COMMIT_INTERVAL_MS'
    """
    return PREFIX + name.strip(".").replace(".", "_").upper()


def _warn_once(variable: str, known: list[str]) -> None:
    if variable in _named:
        return
    _named.add(variable)
    guess = get_close_matches(variable, known, 1, 0.8)
    hint = f"did you mean {guess[0]}?" if guess else "`headrace config` lists the settings"
    _log.warning("the environment variable %s is no setting: %s", variable, hint)
