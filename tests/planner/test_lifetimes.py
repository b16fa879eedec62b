"""Which buffers take over memory, and how much calls need at once."""

from __future__ import annotations

import pytest

from leanconv.planner.arena import BufferUse, lifetimes, peak_bytes

SIZES = {"a": 64, "b": 64, "c": 64, "small": 32}


def test_a_result_takes_over_an_operand_that_dies() -> None:
    uses = [BufferUse(("x",), ("a",), (), 0), BufferUse(("a",), ("b",), (0,), 0)]
    found = lifetimes(uses, SIZES)
    assert found.owner == {"b": "a"}
    assert (found.first, found.last["a"]) == ({"a": 0}, 1)
    assert peak_bytes(uses, SIZES, threads=2) == 64


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (BufferUse(("a", "a"), ("b",), (0,), 0), "read twice"),
        (BufferUse(("a",), ("small",), (0,), 0), "of another size"),
        (BufferUse(("a",), ("y",), (0,), 0), "the user's array"),
        (BufferUse((None,), ("b",), (0,), 0), "a constant"),
        (BufferUse(("x",), ("b",), (0,), 0), "an operand of the user's"),
    ],
)
def test_what_takes_over_nothing(second: BufferUse[str], why: str) -> None:
    found = lifetimes([BufferUse(("x",), ("a",), (), 0), second], SIZES)
    assert not found.owner, why


def test_an_operand_that_is_read_again_stays() -> None:
    uses = [
        BufferUse(("x",), ("a",), (), 0),
        BufferUse(("a",), ("b",), (0,), 0),
        BufferUse(("a", "b"), ("y",), (), 0),
    ]
    assert not lifetimes(uses, SIZES).owner
    assert peak_bytes(uses, SIZES, threads=0) == 128


def test_buffers_before_and_after_count() -> None:
    uses = [BufferUse(("a",), ("b",), (), 16)]
    assert peak_bytes(uses, SIZES, threads=2, before={"a", "c"}, after={"c"}) == 3 * 64 + 2 * 16
    assert peak_bytes(uses, SIZES, threads=2, before={"a"}, after={"b"}) == 2 * 64 + 2 * 16
