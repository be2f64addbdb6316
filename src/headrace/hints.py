"""Errors that name the right word: help for attributes and options that do not exist.

Kafka Streams users try Java names (`mapValues`, `getStateStore`), retired names (`through`) and options of other
methods (`foreign_key=`). This module turns each of them into an error that says what to write.

    @explain_names({"through": "repartition(name=...)"})    # the class: attributes and options of all its methods
    class KStream: ...

    @explain_options()                                      # one function: its options only
    def connect(log, *, timeout=None): ...

    class Stores(metaclass=RenamedNames): ...               # attributes of the class itself: Stores.persistent

A call of a wrapped function that succeeds pays one extra call; `explain_attributes` wraps nothing. No signature
changes, so `help()`, editors and type checkers see the original. Python prints its own "Did you mean" below an
AttributeError, because the error has `name` and `obj`.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import EnumType
from functools import wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])

# Words that Kafka Streams, or another method of this library, uses for an option, and the option that has this meaning.
# A name applies to a function only if that function has the option.
RENAMED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "advance_by": ("advance",),
    "as_": ("name", "store"),
    "buffer_config": ("buffer",),
    "foreign_key": ("on",),
    "foreign_key_extractor": ("on",),
    "grace_period": ("grace",),
    "history_retention": ("history",),
    "joined": ("key", "value"),
    "key_selector": ("on", "key"),
    "key_serde": ("key",),
    "keys": ("key",),
    "materialized": ("store",),
    "named": ("name",),
    "num_partitions": ("partitions",),
    "number_of_partitions": ("partitions",),
    "other_value_serde": ("other_value",),
    "partition": ("partitioner", "partitions"),
    "reset": ("offset_reset",),
    "auto_offset_reset": ("offset_reset",),
    "retention_ms": ("retention",),
    "retention_period": ("retention",),
    "state_store": ("store",),
    "store_name": ("store", "name"),
    "stream_partitioner": ("partitioner",),
    "timestamp_extractor": ("timestamp",),
    "value_serde": ("value",),
    "values": ("value",),
    "window": ("windows", "window_size"),
    "within": ("windows",),
}


# ------------------------------------------------------------------------------------------------------- attributes
def snake_case(name: str) -> str:
    """The Python spelling of a Java name.

    >>> snake_case("flatMapValues"), snake_case("WALL_CLOCK")
    ('flat_map_values', 'WALL_CLOCK')
    """
    return name if name.isupper() else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def missing_attribute(owner: object, name: str, renamed: Mapping[str, str] | None = None) -> AttributeError:
    """The error for an attribute that `owner` (an object, a class or a module) does not have.

    `renamed` maps a name that users try to what they should write. A Java name is looked up there in both spellings,
    and otherwise converted, if the owner has the snake_case name.

    >>> missing_attribute(Class, "through", {"through": "repartition(name=...)"}).args[0]
    "TypeVar has no 'through': use repartition(name=...)"
    >>> missing_attribute("text", "splitLines", {}).args[0], missing_attribute("text", "startsWith").args[0]
    ("str has no 'splitLines'", "str has no 'startsWith'")
    >>> missing_attribute("text", "isTitle", {"is_title": "istitle()"}).args[0]
    "str has no 'isTitle': use istitle()"
    """
    renamed = renamed or {}
    python = snake_case(name)
    known = owner if isinstance(owner, type | ModuleType) else type(owner)
    hint = renamed.get(name) or renamed.get(python)
    if hint is None and python != name and python in dir(known):
        hint = python
    message = f"{known.__name__} has no {name!r}"
    if hint is not None:
        return AttributeError(f"{message}: use {hint}", name=name)  # without `obj`: Python guesses nothing beside it
    return AttributeError(message, name=name, obj=owner)


def missing_name(module: str, name: str, renamed: Mapping[str, str]) -> AttributeError | ImportError:
    """The error for a name that a module does not have, for the module's `__getattr__`.

    `from module import name` replaces an AttributeError with a message of its own. So there it is an ImportError, which
    Python passes on; everywhere else it is an AttributeError.

    >>> import headrace
    >>> headrace.KafkaStreams
    Traceback (most recent call last):
    AttributeError: headrace has no 'KafkaStreams': use Application(application_id, topology, log=...)
    >>> from headrace import Named
    Traceback (most recent call last):
    ImportError: headrace has no 'Named': use the option name= of every operator
    """
    error = missing_attribute(sys.modules[module], name, renamed)
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back  # between them is `__getattr__`
    if caller and name in renamed and dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM":
        return ImportError(error.args[0], name=module)
    return error


class RenamedNames(type):
    """A metaclass that explains missing attributes of the class itself, by the names given to `explain_names`.

    >>> @explain_names({"persistent": "key_value(name)"})
    ... class Stores(metaclass=RenamedNames):
    ...     pass
    >>> Stores.persistent
    Traceback (most recent call last):
    AttributeError: Stores has no 'persistent': use key_value(name)
    """

    if not TYPE_CHECKING:  # type checkers flag the name themselves

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_attribute(cls, name, _renamed_of(cls))


class RenamedMembers(EnumType):
    """`RenamedNames` for an Enum: explains missing members.

    >>> from enum import Enum
    >>> @explain_names({"SECOND": "Order.LAST"})
    ... class Order(Enum, metaclass=RenamedMembers):
    ...     FIRST, LAST = 1, 2
    >>> Order.SECOND
    Traceback (most recent call last):
    AttributeError: Order has no 'SECOND': use Order.LAST
    """

    if not TYPE_CHECKING:  # type checkers flag the name themselves

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_attribute(cls, name, _renamed_of(cls))


def _renamed_of(cls: type) -> Mapping[str, str]:
    for base in cls.__mro__:
        if "__renamed__" in base.__dict__:
            return base.__dict__["__renamed__"]
    return {}


def explain_attributes(renamed: Mapping[str, str] | None = None) -> Callable[[Class], Class]:
    """A class decorator: a missing attribute gets an error with a hint. It adds `__getattr__` and wraps nothing.

    >>> @explain_attributes({"get_state_store": "store(name)"})
    ... class Context:
    ...     pass
    >>> Context().getStateStore
    Traceback (most recent call last):
    AttributeError: Context has no 'getStateStore': use store(name)
    """
    names = dict(renamed or {})

    def explain(cls: Class) -> Class:
        def missing(self: object, name: str) -> NoReturn:
            raise missing_attribute(self, name, names)

        type.__setattr__(cls, "__renamed__", names)
        cls.__getattr__ = missing  # pyright: ignore[reportAttributeAccessIssue] - type checkers must not see it
        return cls

    return explain


def explain_names(
    renamed: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
) -> Callable[[Class], Class]:
    """A class decorator: missing attributes and unknown options of the class's methods get an error with a hint.

    `renamed` maps attributes, `options` maps options, each to what the user should write. The decorator wraps the
    public methods that are written in the class, and adds `__getattr__`.

    >>> @explain_names({"pipe_input": "pipe(key, value)"})
    ... class Topic:
    ...     def pipe(self, value, *, timestamp=None):
    ...         return value
    ...     def read_values(self): ...
    >>> Topic().pipe(1, time_stamp=5)
    Traceback (most recent call last):
    TypeError: Topic.pipe() has no option time_stamp=: did you mean timestamp=? (options: timestamp=)
    >>> Topic().pipeInput
    Traceback (most recent call last):
    AttributeError: Topic has no 'pipeInput': use pipe(key, value)
    >>> Topic().readValues
    Traceback (most recent call last):
    AttributeError: Topic has no 'readValues': use read_values
    """

    def explain(cls: Class) -> Class:
        for name, member in list(cls.__dict__.items()):
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(member, FunctionType):
                if member.__kwdefaults__ or member.__defaults__:  # Python's own error suits a method without options
                    setattr(cls, name, explain_options(options)(member))
            elif isinstance(member, staticmethod | classmethod):
                inner = cast("staticmethod[..., Any] | classmethod[Any, ..., Any]", member)
                setattr(cls, name, type(inner)(explain_options(options)(inner.__func__)))
        return explain_attributes(renamed)(cls)

    return explain


# ---------------------------------------------------------------------------------------------------------- options
def explain_options(renamed: Mapping[str, str] | None = None) -> Callable[[Function], Function]:
    """A decorator: a call with an unknown option raises a TypeError that lists the options and guesses one.

    A call with too many positional arguments lists the options too. Any other error passes unchanged.

    >>> @explain_options({"foreign_key": "on"})
    ... def join(table, joiner, *, on=None, store=None): ...
    >>> join([], max, foreign_key=str)
    Traceback (most recent call last):
    TypeError: join() has no option foreign_key=: did you mean on=? (options: on=, store=)
    >>> join([], max, "totals")
    Traceback (most recent call last):
    TypeError: join() takes 2 arguments by position (table, joiner), not 3: name the others (options: on=, store=)
    >>> join([], max, name="a", grace=3)
    Traceback (most recent call last):
    TypeError: join() has no options name=, grace= (options: on=, store=)
    """

    def explain(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except TypeError as error:
                # One frame: the call itself failed, before the function's first line.
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                message = _mistake(function, len(arguments), options, renamed or {})
                if message is None:
                    raise
            raise TypeError(message)

        return cast("Function", call)

    return explain


def guess(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to a misspelt one, or None.

    >>> guess("tiemstamp", ["key", "value", "timestamp"]), guess("colour", ["key"])
    ('timestamp', None)
    """
    return next(iter(get_close_matches(word, list(known), n=1)), None)


def _mistake(function: Callable[..., Any], given: int, used: Iterable[str], renamed: Mapping[str, str]) -> str | None:
    """What is wrong with a call, in one sentence; None if the names and the number of arguments are right."""
    parameters = list(inspect.signature(function).parameters.values())
    is_method = bool(parameters) and parameters[0].name in ("self", "cls")
    if is_method:
        parameters, given = parameters[1:], given - 1
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # An argument that must be given is no option: `options` are what a caller may add.
    options = [p.name for p in parameters if p.name in by_name and p.default is not p.empty]
    name = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
    listed = f"(options: {', '.join(f'{option}=' for option in options)})" if options else "(it has no options)"
    unknown = [option for option in used if option not in by_name]
    if unknown:
        guesses = [g for g in (_option_for(option, by_name, renamed) for option in unknown) if g is not None]
        hint = f": did you mean {', '.join(dict.fromkeys(guesses))}?" if guesses else ""
        words = ", ".join(f"{option}=" for option in unknown)
        return f"{name}() has no option{'s' if len(unknown) > 1 else ''} {words}{hint} {listed}"
    if given > len(by_position) and not takes_more:
        count = len(by_position)
        which = f" ({', '.join(by_position)})" if by_position else ""
        arguments = f"{count or 'no'} argument{'' if count == 1 else 's'} by position{which}"
        return f"{name}() takes {arguments}, not {given}: name the others {listed}"
    return None


def _option_for(used: str, known: list[str], renamed: Mapping[str, str]) -> str | None:
    word = snake_case(used)
    hint = renamed.get(used) or renamed.get(word)
    if hint is not None:
        return f"{hint}=" if hint in known else hint
    candidates = [word, *RENAMED_OPTIONS.get(word, ())]
    found = next((option for option in candidates if option in known), None) or guess(word, known)
    return None if found is None else f"{found}="
