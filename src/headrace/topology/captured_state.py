"""Warns of functions that keep state in a variable outside of themselves.

    counts = {}
    stream.map_values(lambda word: counts.setdefault(word, 0))      # CapturedStateWarning

In one process such a function works. On Spark every process has its own copy of the variable, and a batch that runs
again changes it twice, so the results are wrong and no error is raised. `warn_of_captured_state` reads the bytecode
when a topology is built. It finds

    counts[key] = 1     del counts[key]     counts.update(...)     state.total += 1     next(ids)
    global total        nonlocal total      (followed by an assignment)

where the object is captured: a global, a variable of an enclosing function, a default argument, or `self` of a bound
method. It follows the user's functions and methods that the function refers to. A function that only reads, for
example from a lookup table, gives no warning.

The search executes the bytecode symbolically: the stack and the local variables hold a `Captured` where a captured
object is known to be, and None for everything else. What the search does not understand becomes None, so it may miss a
change, and it does not report one that cannot happen.
"""

from __future__ import annotations

import bisect
import builtins
import dis
import heapq
import inspect
import sys
import sysconfig
import warnings
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet
from functools import partial
from pathlib import Path
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple, cast

from headrace.errors import CapturedStateWarning

_PACKAGE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_COLLECTIONS = (MutableMapping, MutableSequence, MutableSet, bytearray)
_MUTATING_METHODS = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
    "sort", "subtract", "symmetric_difference_update", "update",
}  # fmt: skip
_MUTATING_FUNCTIONS: tuple[object, ...] = (  # each changes its first argument
    next, setattr, delattr, heapq.heappush, heapq.heappop, heapq.heapify, heapq.heapreplace, heapq.heappushpop,
    bisect.insort, bisect.insort_left,
)  # fmt: skip
_MISSING: Any = object()
_NO_EFFECT = {"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"}
_NO_FALL_THROUGH = {
    "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS",
    "RERAISE",
}  # fmt: skip


class Captured(NamedTuple):
    """An object that outlives a call of the function, and the expression by which the function reads it."""

    name: str
    value: Any

    def __str__(self) -> str:
        kind = "the class" if isinstance(self.value, type) else f"the {type(self.value).__name__}"
        return f"{kind} {self.name!r}" if self.name else f"a {type(self.value).__name__}"


class Shared(SimpleNamespace):
    """Stands for `self` in a method of a class: it has the attributes that all objects of the class share."""


class Change(NamedTuple):
    """A line that changes something outside of its function."""

    target: str
    file: str
    line: int


def warn_of_captured_state(f: Callable[..., Any]) -> None:
    """Give one `CapturedStateWarning` if a function, or a method of a class of processors, changes captured state.

    >>> counts = {}
    >>> with warnings.catch_warnings(record=True) as given:
    ...     warnings.simplefilter("always")
    ...     warn_of_captured_state(lambda word: counts.get(word, 0))
    ...     warn_of_captured_state(lambda word: counts.setdefault(word, 0))
    >>> [type(warning.message).__name__ for warning in given]
    ['CapturedStateWarning']
    """
    change = find_change(f)
    if change is None:
        return
    name = getattr(f, "__qualname__", type(f).__qualname__).rpartition("<locals>.")[2]
    who = "a lambda" if name == "<lambda>" else f"the class {name}" if isinstance(f, type) else f"the function {name}"
    warnings.warn_explicit(
        f"{who} ({change.file}:{change.line}) changes {change.target}. On Spark every process has its own copy of it, "
        "so the results are wrong. Keep state in a store: aggregate(...), or a processor with a store",
        CapturedStateWarning,
        change.file,
        change.line,
    )


def find_change(f: Callable[..., Any]) -> Change | None:
    """The first change of captured state that a function can make, or None."""
    search = _Search()
    if isinstance(f, type):
        return search.in_class(f)
    arguments: dict[str, Any] = {}
    while isinstance(f, partial):
        bound = cast("partial[Any]", f)
        f = bound.func
        names = f.__code__.co_varnames if isinstance(f, FunctionType) else ()
        arguments = {**dict(zip(names, bound.args, strict=False)), **bound.keywords, **arguments}
    if isinstance(f, FunctionType):
        return search.in_function(f, {name: Captured(name, value) for name, value in arguments.items()})
    if isinstance(f, MethodType):
        return search.in_method(f.__func__, Captured(type(f.__self__).__name__, f.__self__))
    if isinstance(f, BuiltinMethodType):
        is_change = _is_collection(f.__self__) and f.__name__ in _MUTATING_METHODS
        return Change(str(Captured("", f.__self__)), *_users_line()) if is_change else None
    return search.in_method(inspect.getattr_static(type(f), "__call__", None), Captured(type(f).__name__, f))


class _Search:
    """A search through one function and the functions that it refers to, each of them once."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()

    def in_class(self, cls: type) -> Change | None:
        """Search the methods of a class of processors. Their objects may change, but not what they share.

        The class may have a collection as an attribute that no method replaces: all its objects share that one.
        """
        methods = [member for member in vars(cls).values() if isinstance(member, FunctionType)]
        methods = [method for method in methods if method.__code__.co_argcount and _is_users(method.__code__)]
        steps = [step for method in methods for step in dis.get_instructions(method)]
        replaced = {step.argval for step in steps if step.opname == "STORE_ATTR"}
        shared = {n: v for n, v in vars(cls).items() if _is_collection(v) and n not in replaced}
        of_all = Captured(cls.__name__, Shared(**shared))
        found = (self.in_function(method, {method.__code__.co_varnames[0]: of_all}) for method in methods)
        return next(filter(None, found), None)

    def in_method(self, method: Any, owner: Captured) -> Change | None:
        """Search a method of the user for changes of its object."""
        if not isinstance(method, FunctionType) or not method.__code__.co_argcount or not _is_users(method.__code__):
            return None
        return self.in_function(method, {method.__code__.co_varnames[0]: owner})

    def in_function(self, f: FunctionType, arguments: Mapping[str, Captured]) -> Change | None:
        """Search a function whose first parameters are captured objects, as `self` of a bound method is."""
        cells: dict[str, Captured | None] = dict.fromkeys(f.__code__.co_freevars)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            try:
                cells[name] = Captured(name, cell.cell_contents)
            except ValueError:  # the variable has no value yet
                continue
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
        defaults = f.__defaults__ or ()
        values = {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **(f.__kwdefaults__ or {})}
        known = {name: Captured(name, value) for name, value in values.items()}
        return self._in_code(f.__code__, cells, f.__globals__, {**known, **arguments})

    def _in_code(
        self,
        code: CodeType,
        cells: Mapping[str, Captured | None],
        variables: Mapping[str, Any],
        known: Mapping[str, Captured],
    ) -> Change | None:
        """Search a code object and the functions and comprehensions inside it.

        `cells` has the variables of enclosing functions that are captured, `variables` the globals.
        """
        if code in self._seen:
            return None
        self._seen.add(code)
        change = _Frame(self, code, cells, variables, known).search()
        if change is not None:
            return change
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                shared = {name: cells[name] for name in inner.co_freevars if name in cells}
                change = self._in_code(inner, shared, variables, {})
                if change is not None:
                    return change
        return None


class _Frame:
    """The symbolic execution of one code object, from its first instruction to its last."""

    def __init__(
        self,
        search: _Search,
        code: CodeType,
        cells: Mapping[str, Captured | None],
        variables: Mapping[str, Any],
        known: Mapping[str, Captured],
    ) -> None:
        self._search, self._code, self._cells, self._globals = search, code, cells, variables
        self._locals: dict[str, Captured | None] = dict(known)
        self._stack: list[Captured | None] = []
        self._line = code.co_firstlineno

    def search(self) -> Change | None:
        at_targets: dict[int, list[Captured | None]] = {}
        falls_through = True
        for instruction in dis.get_instructions(self._code):
            position = instruction.positions
            self._line = (position and position.lineno) or self._line
            if not falls_through or (instruction.offset in at_targets and not self._stack):
                self._stack = at_targets.get(instruction.offset, [])
            found = self._step(instruction)
            if found is not None:
                return found
            if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
                at_targets.setdefault(instruction.argval, list(self._stack))
            falls_through = instruction.opname not in _NO_FALL_THROUGH
        return None

    def _step(self, instruction: dis.Instruction) -> Change | None:  # noqa: C901, PLR0911, PLR0912 - one case a kind
        name, operation = instruction.argval, instruction.opname
        match operation:
            case _ if operation in _NO_EFFECT:
                return None
            case "POP_TOP" | "STORE_SUBSCR" | "DELETE_SUBSCR" | "STORE_SLICE" | "STORE_ATTR" | "DELETE_ATTR":
                return self._store(instruction)
            case "STORE_GLOBAL" | "DELETE_GLOBAL":
                self._pop(operation == "STORE_GLOBAL")
                return self._change(f"the global variable {name!r}")
            case "STORE_DEREF" | "DELETE_DEREF" if name in self._cells:
                self._pop(operation == "STORE_DEREF")
                return self._change(f"the variable {name!r} of an enclosing function")
            case "LOAD_DEREF" | "LOAD_CLASSDEREF":
                return self._load(self._cells.get(name))
            case "LOAD_GLOBAL" | "LOAD_NAME":
                return self._load_global(instruction)
            case "LOAD_ATTR" | "LOAD_METHOD":
                return self._load_attribute(instruction)
            case "BINARY_SUBSCR":
                self._load_element()
            case "BINARY_OP" if instruction.argrepr == "[]":
                self._load_element()
            case "CALL":
                return self._call(instruction.arg or 0)
            case "COPY":
                self._stack.append(self._peek(instruction.arg or 1))
            case "SWAP":
                self._swap(instruction.arg or 1)
            case _ if "_FAST" in operation:
                self._use_locals(operation, name)
            case _:
                self._apply_effect(instruction)
        return None

    # ---------------------------------------------------------------------------------------------------- changes
    def _change(self, target: object) -> Change:
        return Change(str(target), self._code.co_filename, self._line)

    def _store(self, instruction: dis.Instruction) -> Change | None:
        """An item or attribute that is assigned or deleted: the changed object is this far down on the stack."""
        depth, popped = {
            "STORE_SUBSCR": (2, 3), "DELETE_SUBSCR": (2, 2), "STORE_SLICE": (3, 4), "STORE_ATTR": (1, 2),
            "DELETE_ATTR": (1, 1), "POP_TOP": (1, 1),
        }[instruction.opname]  # fmt: skip
        changed = None if instruction.opname == "POP_TOP" else self._peek(depth)
        self._pop(popped)
        if changed is None or isinstance(changed.value, Shared):
            return None
        if instruction.opname.endswith("ATTR"):
            return self._change(f"the attribute {f'{changed.name}.{instruction.argval}'!r}")
        return self._change(changed)

    def _call(self, count: int) -> Change | None:
        # The function is one or two places below the arguments; Python 3.13 exchanged these two places.
        functions = [self._peek(count + 1), self._peek(count + 2)]
        first = self._peek(count) if count else None
        self._pop(count + 2)
        self._stack.append(None)
        changes = any(f is not None and f.value is g for f in functions for g in _MUTATING_FUNCTIONS)
        return self._change(first) if changes and first is not None else None

    # ------------------------------------------------------------------------------------------------------ loads
    def _load(self, captured: Captured | None) -> Change | None:
        self._stack.append(captured)
        if captured is not None and isinstance(captured.value, FunctionType) and _is_users(captured.value.__code__):
            return self._search.in_function(captured.value, {})
        return None

    def _load_global(self, instruction: dis.Instruction) -> Change | None:
        name = instruction.argval
        value = self._globals.get(name, getattr(builtins, name, _MISSING))
        effect = dis.stack_effect(instruction.opcode, instruction.arg)
        null_comes_first = sys.version_info < (3, 13)
        if effect == 2 and null_comes_first:
            self._stack.append(None)
        change = self._load(None if value is _MISSING else Captured(name, value))
        if effect == 2 and not null_comes_first:
            self._stack.append(None)
        return change

    def _load_attribute(self, instruction: dis.Instruction) -> Change | None:
        name, owner = instruction.argval, self._peek(1)
        added = dis.stack_effect(instruction.opcode, instruction.arg)
        self._pop(1)
        self._stack += [None] * (added + 1)
        if owner is None:
            return None
        if _is_collection(owner.value) and name in _MUTATING_METHODS:
            return self._change(owner)
        attribute: Any = inspect.getattr_static(owner.value, name, _MISSING)
        if isinstance(attribute, FunctionType):
            if isinstance(owner.value, type) or inspect.ismodule(owner.value):
                return self._search.in_function(attribute, {}) if _is_users(attribute.__code__) else None
            return self._search.in_method(attribute, owner)
        if attribute is not _MISSING and not hasattr(attribute.__class__, "__get__"):  # no property or other descriptor
            self._stack[-1 - added] = Captured(f"{owner.name}.{name}", attribute)
        return None

    def _load_element(self) -> None:
        """An element of a captured collection is represented by one that is in it now."""
        container = self._peek(2)
        self._pop(2)
        element = None if container is None else _sample(container.value)
        self._stack.append(None if container is None or element is None else Captured(f"{container.name}[…]", element))

    def _use_locals(self, operation: str, names: str | tuple[str, ...]) -> None:
        """LOAD_FAST and STORE_FAST, alone or, from Python 3.13 on, two in one instruction."""
        actions = [word for word in operation.split("_") if word in ("LOAD", "STORE", "DELETE")]
        for action, name in zip(actions, (names,) if isinstance(names, str) else names, strict=False):
            if action == "LOAD":
                self._stack.append(self._locals.get(name))
            elif action == "STORE":
                self._locals[name] = self._peek(1)
                self._pop(1)
            else:
                self._locals.pop(name, None)

    # ------------------------------------------------------------------------------------------------------ stack
    def _peek(self, depth: int) -> Captured | None:
        """The item that is so deep in the stack, 1 is the top."""
        return self._stack[-depth] if len(self._stack) >= depth else None

    def _pop(self, count: int) -> None:
        del self._stack[max(0, len(self._stack) - count) :]

    def _swap(self, depth: int) -> None:
        if len(self._stack) >= depth:
            self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

    def _apply_effect(self, instruction: dis.Instruction) -> None:
        """Any other instruction: what it leaves on top of the stack is unknown."""
        effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if effect > 0:
            self._stack += [None] * effect
            return
        self._pop(-effect)
        if self._stack and not instruction.opname.startswith(
            ("POP_JUMP", "STORE_", "DELETE_", "MAKE_CELL", "COPY_FREE")
        ):
            self._stack[-1] = None


def _is_collection(value: object) -> bool:
    return isinstance(value, _COLLECTIONS)


def _sample(container: Any) -> Any:
    factory = getattr(container, "default_factory", None)  # of a defaultdict
    if factory in (dict, list, set, deque):
        return cast("Any", factory())
    match container:
        case dict():
            return next(iter(cast("dict[Any, Any]", container).values()), None)
        case list() | tuple() | deque():
            return next(iter(cast("tuple[Any, ...]", container)), None)
        case _:
            return None


def _is_users(code: CodeType) -> bool:
    """False for code of Python itself, of installed packages and of Headrace."""
    file = code.co_filename
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith("<frozen")
    return not is_installed and not file.startswith((*_LIBRARIES, _PACKAGE))


def _users_line() -> tuple[str, int]:
    """The line of the program that called Headrace."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
