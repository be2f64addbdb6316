"""Packages that only an extra of Headrace installs: `pip install 'headrace[spark]'`.

The base has what a topology and its tests need. A module that needs more imports it when it is used, by one of these
functions, so that a missing package is an error which names the command that installs it.

`import_extra` imports a module now, `lazy_extra` at the first use of one of its names. `needs_extra` is for a block
that imports modules of Headrace, which import the packages at their tops.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from headrace.errors import MissingExtraError


def import_extra(module: str, extra: str) -> ModuleType:
    """Imports a module of an optional package. Raises an error that names the command which installs it.

    >>> import_extra("no_such_package", "postgres")
    Traceback (most recent call last):
    headrace.errors.MissingExtraError: no_such_package is not installed: pip install 'headrace[postgres]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (getattr(error, "name", None) or module).partition(".")[0]
        raise MissingExtraError(missing, extra) from error


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Explains which extra is missing if a block imports a package that is not installed.

    >>> with needs_extra("web"):
    ...     import no_such_package
    Traceback (most recent call last):
    headrace.errors.MissingExtraError: no_such_package is not installed: pip install 'headrace[web]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "headrace"}:
            raise
        raise MissingExtraError(package, extra) from error


class _LazyModule:
    """Stands for a module. A name that was used once is an attribute, which costs what one of the module costs."""

    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_extra(self._module, self._extra), name)
        setattr(self, name, found)
        return found


def lazy_extra(module: str, extra: str) -> Any:
    """Returns an object with the names of a module, which is imported when the first of them is used.

    >>> lazy_extra("json", "spark").dumps([1])
    '[1]'
    """
    return _LazyModule(module, extra)
