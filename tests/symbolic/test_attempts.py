"""What is made without symbols: quietly where numbers are needed, with a warning after a defect."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from leanconv.codegen.tiling import rank_tiles
from leanconv.errors import LeanConvError, OutOfMemoryError, ReentrantCallError, UnsupportedError
from leanconv.symbolic import (
    BeyondBoundsError,
    NeedsNumberError,
    Trace,
    attempted,
    fixed,
    require_numbers,
    tell,
)
from leanconv.target import preset


def raising(error: BaseException) -> Any:
    def make() -> None:
        raise error

    return make


def test_what_is_made_is_given_back() -> None:
    assert attempted(lambda: 7) == 7


@pytest.mark.parametrize("kind", [NeedsNumberError, BeyondBoundsError])
def test_a_need_for_numbers_is_told_quietly(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "leanconv.symbolic.attempts")
    reason = attempted(raising(kind("a table")))
    assert isinstance(reason, NeedsNumberError)
    tell("the node is lowered", reason)
    assert caplog.messages == ["the node is lowered by itself: a table"]
    assert caplog.records[0].levelno == logging.DEBUG


@pytest.mark.parametrize(
    "kind", [TypeError, ValueError, KeyError, AssertionError, ZeroDivisionError, UnsupportedError]
)
def test_a_defect_is_a_warning_once_and_fails_the_test(
    kind: type[Exception], caplog: pytest.LogCaptureFixture, defects: list[str]
) -> None:
    reason = attempted(raising(kind("odd")))
    assert type(reason) is kind
    for _ in range(2):
        tell("the node is lowered", reason)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    assert record.exc_info[1] is reason
    (text,) = defects
    assert f"{kind.__name__}: " in text
    assert "a defect of leanconv" in text
    defects.clear()


@pytest.mark.parametrize(
    "error",
    [OutOfMemoryError("x"), ReentrantCallError("x"), TimeoutError("x"), KeyboardInterrupt()],
)
def test_what_is_no_defect_comes_through(error: BaseException) -> None:
    """The system's refusals, and what a signal handler raises."""
    with pytest.raises(type(error)):
        attempted(raising(error))


def test_only_the_bounds_are_errors_of_the_users() -> None:
    """Who handles errors of files takes no need for numbers for one."""
    assert not issubclass(NeedsNumberError, LeanConvError)
    assert issubclass(BeyondBoundsError, UnsupportedError)


def test_ranking_register_tiles_looks_at_numbers() -> None:
    """A row of any width is lowered for each width then, without a word of a defect."""
    target = preset("haswell")
    assert rank_tiles(target, 24, 2, 9)
    with pytest.raises(NeedsNumberError, match="a table of remembered results"):
        rank_tiles(target, Trace().variable(0, 24), 2, 9)


def test_what_looks_at_numbers_says_so() -> None:
    symbol = Trace().variable(0, 5)
    require_numbers("a table", 3, 4)
    with pytest.raises(NeedsNumberError, match="a table looks at the number of"):
        require_numbers("a table", 3, symbol)
    assert not symbol.trace.guards


def test_what_is_fixed_leaves_a_guard() -> None:
    trace = Trace()
    size, factor = trace.variable(0, 5), trace.variable(1, 0.5)
    assert [fixed(each) for each in (7, size + 1, ("pads", [size, 2], {"n": size}))] == [
        7,
        6,
        ("pads", [5, 2], {"n": 5}),
    ]
    assert {guard.text: n for guard, n in trace.guards.items()} == {"(v[0] + 1)": 6, "v[0]": 5}
    assert fixed((factor, 1.5)) == (0.5, 1.5)
