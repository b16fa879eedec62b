"""Dataclasses of `leanconv.records` are as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import pytest

from leanconv.records import dataclass

MAKERS = [dataclasses.dataclass, dataclass]


def kinds(make: Callable[..., Any]) -> list[Any]:
    """Classes of every kind that the package has."""

    @make(frozen=True)
    class Base:
        """First."""

        values: int
        seen: list[int] = field(default_factory=list, compare=False, repr=False)

    @make(frozen=True, kw_only=True)
    class Child(Base):
        """One more field."""

        other: float = 0.5

        def __post_init__(self) -> None:
            if self.other < 0:
                raise ValueError("negative")

    @make
    class Plain:
        """Can be changed."""

        first: str = "a"

        def __repr__(self) -> str:
            return "mine"

    @make(frozen=True, eq=False)
    class Alone:
        """Equal to itself only."""

        first: object = None

    return [Base, Child, Plain, Alone]


@pytest.mark.parametrize("number", range(4))
def test_they_have_the_same_fields_and_signature(number: int) -> None:
    known, ours = (kinds(make)[number] for make in MAKERS)
    assert [(f.name, f.kw_only, f.compare) for f in dataclasses.fields(known)] == [
        (f.name, f.kw_only, f.compare) for f in dataclasses.fields(ours)
    ]
    texts = [str(inspect.signature(kind)).replace("<factory>", "_") for kind in (known, ours)]
    assert texts[0].count(":") == texts[1].count(":")
    assert ours.__init__.__annotations__ == known.__init__.__annotations__


@pytest.mark.parametrize("make", MAKERS)
def test_they_compare_and_change_alike(make: Callable[..., Any]) -> None:
    base, child, plain, alone = kinds(make)
    assert base(1) == base(1, [2])
    assert base(1) != child(values=1)
    assert hash(child(1, other=2.0)) == hash(child(1, [3], other=2.0))
    assert hash(base(1)) == hash((1,))
    assert base(1).seen is not base(1).seen
    assert replace(child(1), other=3.0) == child(1, other=3.0)
    assert dataclasses.asdict(child(1)) == {"values": 1, "seen": [], "other": 0.5}
    assert copy.deepcopy(child(1)) == child(1)
    assert repr(child(1)).endswith("Child(values=1, other=0.5)")
    assert repr(plain()) == "mine"
    assert plain() == plain("a")
    assert plain.__hash__ is None
    assert alone() != alone()
    assert len({alone(), alone()}) == 2
    for change in (lambda x: setattr(x, "values", 2), lambda x: delattr(x, "values")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change(child(1))
    with pytest.raises(ValueError, match="negative"):
        child(1, other=-1.0)
    with pytest.raises(TypeError):
        child()
    with pytest.raises(TypeError):
        child(1, [], 2.0)


@dataclass(frozen=True)
class Kept:
    """One that has a place of its own."""

    values: tuple[int, ...]


def test_they_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept((1, 2)))) == Kept((1, 2))


@pytest.mark.parametrize(("outer", "inner"), [(dataclass, dataclasses.dataclass), MAKERS])
def test_they_inherit_from_each_other(outer: Callable[..., Any], inner: Callable[..., Any]) -> None:
    @inner(frozen=True)
    class Below:
        """A base."""

        first: int

    @outer(frozen=True)
    class Above(Below):
        """Of the other kind."""

        second: int = 2

    assert Above(1) == Above(1, 2)
    assert repr(Above(1)).endswith("Above(first=1, second=2)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Above(1).second = 3
    with pytest.raises(TypeError, match="frozen"):
        outer(type("Open", (Below,), {}))
