"""Dataclasses that are made and changed quickly, and properties that take no lock.

Importing the package makes three hundred dataclasses. The standard library compiles each of their
methods by itself, up to six, which takes most of an import. Here those that follow the fields are
compiled when they are first asked for, and the others are shared. What comes out is
a dataclass like any other: `fields`, `replace` and `asdict` of `dataclasses` take it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_MISSING = dataclasses.MISSING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # what type checkers know
    from dataclasses import field as field
    from dataclasses import replace as replace
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801
        """A property that is computed once for each object and kept in its `__dict__`.

        That of the standard library takes a lock for all objects of the class, until Python 3.12:
        it would stay taken in a forked child, and where a signal handler's exception comes between
        two of its lines.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            found = instance.__dict__[self.name] = self.function(instance)
            return found

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002
        kw_only: bool = False,
    ) -> Any:
        """Make a dataclass as `dataclasses.dataclass` does, with these options of it."""

        def made(cls: type) -> type:
            _with_fields(cls, frozen, kw_only)
            names = ("__init__", "__eq__", "__hash__") if eq else ("__init__",)
            methods: dict[str, Any] = {name: _Pending(cls, name, frozen) for name in names}
            if eq and not frozen:
                methods["__hash__"] = None
            if repr:
                methods["__repr__"] = _repr
            if frozen:
                methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
            for name, method in methods.items():
                if name not in cls.__dict__ or (name == "__hash__" and cls.__hash__ is None):
                    setattr(cls, name, method)
            return cls

        return made if cls is None else made(cls)

    field = dataclasses.field
    _given: dict[type, tuple[str, ...]] = {}  # the fields that a class is made of

    def replace(record: Any, /, **changes: Any) -> Any:
        """Replace fields as `dataclasses.replace` does, in a third of its time."""
        cls = type(record)
        names = _given.get(cls)
        if names is None:
            fields = dataclasses.fields(cls)
            names = _given[cls] = tuple(each.name for each in fields if each.init)
        for name in names:
            if name not in changes:
                changes[name] = getattr(record, name)
        return cls(**changes)


class _Pending:
    """A method made from the fields, compiled at first use; comparisons and hash together.

    A load uses less than half of the classes that it imports, and compares few of these.
    """

    def __init__(self, cls: type, name: str, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        cls = self._cls
        methods = _init(cls, self._frozen) if self._name == "__init__" else _comparisons(cls)
        for name, method in methods.items():
            if isinstance(cls.__dict__.get(name), _Pending):
                setattr(cls, name, method)
        return methods[self._name].__get__(instance, owner)


def _with_fields(cls: Any, frozen: bool, kw_only: bool) -> None:
    """Make it a dataclass without methods.

    The standard library would make those that freeze it, one by one, and refuses to mix: so it is
    told that nothing is frozen.
    """
    bases = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    known = [(base, base.frozen) for base in bases if base is not None]
    if any(was != frozen for _, was in known):
        raise TypeError(f"{cls.__qualname__} inherits from a dataclass that is frozen otherwise")
    for base, _ in known:
        base.frozen = False
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    finally:
        for base, was in known:
            base.frozen = was
    cls.__dataclass_params__.frozen = frozen


def _init(cls: type, frozen: bool) -> dict[str, Any]:
    """The method that makes a record of its fields' values."""
    fields = dataclasses.fields(cls)
    names: dict[str, Any] = {"_missing": _MISSING, "__name__": cls.__module__}
    heads, body = ["self"], ["_values = self.__dict__"] if frozen else []
    keywords: list[str] = []
    for field in fields:
        name, given = field.name, field.name
        if field.default is not _MISSING:
            names[f"_default_{name}"] = field.default
            given = f"{name}=_default_{name}"
        elif field.default_factory is not _MISSING:
            names[f"_make_{name}"] = field.default_factory
            given = f"{name}=_missing"
            body.append(f"{name} = _make_{name}() if {name} is _missing else {name}")
        (keywords if field.kw_only else heads).append(given)
        body.append(f"_values[{name!r}] = {name}" if frozen else f"self.{name} = {name}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join([*heads, *(["*", *keywords] if keywords else [])])
    lines = [f"def __init__({arguments}):", *(f" {line}" for line in body or ["pass"])]
    methods = _compiled(cls, lines, names)
    annotations = {field.name: field.type for field in fields}
    methods["__init__"].__annotations__ = {**annotations, "return": None}
    return methods


def _comparisons(cls: type) -> dict[str, Any]:
    """The methods that compare records by the values of their fields, and their hash."""
    fields = dataclasses.fields(cls)
    mine = "".join(f"self.{field.name}, " for field in fields if field.compare)
    lines = [
        "def __eq__(self, other):",
        " if other.__class__ is not self.__class__: return NotImplemented",
        f" return ({mine}) == ({mine.replace('self.', 'other.')})",
        "def __hash__(self):",
        f" return hash(({mine}))",
    ]
    return _compiled(cls, lines, {"__name__": cls.__module__})


def _compiled(cls: type, lines: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """The methods that lines define, for which `names` are global."""
    methods: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<{cls.__qualname__}>", "exec"), names, methods)
    for name, method in methods.items():
        method.__qualname__ = f"{cls.__qualname__}.{name}"
    return methods


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _refusal(verb: str) -> Callable[..., None]:
    def refuse(self: Any, name: str, *_: object) -> None:
        kind = type(self)
        if "__dataclass_fields__" in kind.__dict__ or name in kind.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")
        change = object.__delattr__ if verb == "delete" else object.__setattr__
        change(self, name, *_)

    return refuse


_refuse_to_set, _refuse_to_delete = _refusal("assign to"), _refusal("delete")
