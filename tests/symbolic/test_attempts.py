"""What is made without symbols: quietly where numbers are needed, with a warning after a defect."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any
from weakref import ref

import numpy as np
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


def test_what_was_begun_is_gone() -> None:
    """It is made again by itself, and both together would take twice as much memory."""
    seen = []

    def inner() -> None:
        array = np.zeros(9)
        seen.append(ref(array))
        raise UnsupportedError("too large")

    def make() -> None:
        array = np.zeros(9)
        seen.append(ref(array))
        try:
            inner()
        except UnsupportedError as error:
            raise UnsupportedError("a node") from error

    reason = attempted(make)
    assert isinstance(reason, UnsupportedError)
    assert len(seen) == 2
    assert all(each() is None for each in seen)


@pytest.mark.parametrize("kind", [NeedsNumberError, BeyondBoundsError])
def test_a_need_for_numbers_is_told_quietly(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "leanconv.symbolic.memo")
    reason = attempted(raising(kind("a table")))
    assert isinstance(reason, NeedsNumberError)
    tell("the node is lowered", reason)
    assert caplog.messages == ["the node is lowered by itself: a table"]
    assert caplog.records[0].levelno == logging.DEBUG


@pytest.mark.parametrize(
    "kind", [TypeError, ValueError, KeyError, AssertionError, ZeroDivisionError, UnsupportedError]
)
def test_a_defect_is_raised_or_a_warning_once(
    kind: type[Exception], defects_are_warnings: pytest.LogCaptureFixture
) -> None:
    reason = attempted(raising(kind("odd")))
    assert type(reason) is kind
    for _ in range(2):
        tell("the node is lowered", reason)
    (record,) = defects_are_warnings.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    assert record.exc_info[1] is reason
    assert f"{kind.__name__}: " in record.getMessage()
    assert "a defect of leanconv" in record.getMessage()


@pytest.mark.parametrize("kind", [TypeError, KeyError, AssertionError])
def test_tests_meet_the_defect_itself(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="odd"):
        attempted(raising(kind("odd")))


def test_a_refusal_is_a_defect_where_numbers_are_not_refused() -> None:
    reason = attempted(raising(UnsupportedError("odd")))
    with pytest.raises(AssertionError, match="the node is lowered: UnsupportedError: odd"):
        tell("the node is lowered", reason)


def test_defects_are_raised_in_processes_that_tests_start() -> None:
    asked = "from leanconv.settings import current_settings as now; print(now().raise_defects)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


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
    assert {guard.text: n for guard, n in trace.guards.items()} == {"v[0] + 1": 6, "v[0]": 5}
    assert fixed((factor, 1.5)) == (0.5, 1.5)
