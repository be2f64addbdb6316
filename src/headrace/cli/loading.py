"""What `module:attribute` names: an application, or a topology to make one of."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from headrace.app import Application
from headrace.cli.printing import Failed, WrongUsage
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph


def load(target: str) -> Topology | Application:
    """The topology or the application that a module has, or that a function in it makes without arguments."""
    thing = _attribute(target)
    if not isinstance(thing, Topology | Application) and callable(thing):
        try:
            thing = cast("Any", thing)()
        except TypeError as error:
            raise Failed(f"{target} cannot be called without arguments: {error}") from error
    if isinstance(thing, Topology | Application):
        return thing
    raise Failed(
        f"{target} is a {type(thing).__name__}: name an Application, a Topology, or a function without arguments that "
        "makes one"
    )


def graph_of(thing: Topology | Application) -> Graph:
    """The graph of a topology, or of the one that an application runs."""
    return thing.graph() if isinstance(thing, Topology) else thing.setup.graph


def _attribute(target: str) -> Any:
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise WrongUsage(f"write MODULE:ATTRIBUTE, such as shop.orders:app, not {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        thing = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failed(f"there is no module {module_name!r} in {here} or among those installed") from error
        raise
    for name in path.split("."):
        if not hasattr(thing, name):
            raise Failed(f"{module_name} has no {path!r}: name what it calls its application or its topology")
        thing = getattr(thing, name)
    return thing
