"""Padding larger than a register tile or than the image: every method reads its input only.

Cases run between pages that cannot be read, in a process that may die of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from leanconv.errors import SpecError
from support.padded_cases import chosen_cases
from support.paged import Paged

pytestmark = pytest.mark.vectors

TESTS = Path(__file__).parent.parent
HANG_S = 1200.0  # of time, however busy the machine
RANDOM_S = 100.0  # of CPU time


def _lines(folder: Path, *arguments: str) -> list[str]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    result = subprocess.run(
        [sys.executable, "-m", "support.padding_worker", *arguments],
        env={**os.environ, "PYTHONPATH": path, "LEANCONV_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    lines = result.stdout.splitlines() or ["nothing"]
    assert result.returncode == 0, f"ended after {lines[-1]!r}: {result.stderr[-3000:]}"
    return lines


@pytest.mark.pairs
@pytest.mark.parametrize("padding", [(0, 6), (0, 12), (0, 40), (12, 0), (5, 12)])
@pytest.mark.parametrize("width", [1, 5, 13])
@pytest.mark.parametrize("channels", [3, 16, 33])
def test_columns_behind_the_image_are_zeros(
    channels: int, width: int, padding: tuple[int, int]
) -> None:
    draw = np.random.default_rng(width)
    x = draw.integers(-3, 4, (1, channels, width)).astype(np.float32)
    w = draw.integers(-3, 4, (16, channels, 1)).astype(np.float32)
    found = lc.conv2d(x, w, padding=padding, algorithm="direct")
    products = np.einsum("kc,ncw->nkw", w[:, :, 0], x)
    assert np.array_equal(found, np.pad(products, ((0, 0), (0, 0), padding)))


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_a_depth_of_one_may_lie_in_the_padding(algorithm: str | None, groups: int) -> None:
    """One plane, one tap, one result, and yet the tap touches nothing."""
    draw = np.random.default_rng(groups)
    x = draw.integers(-3, 4, (1, 16, 1, 9, 9)).astype(np.float32)
    w = draw.integers(-3, 4, (16, 16 // groups, 1, 3, 3)).astype(np.float32)
    padding = (1, 1, 1, 0, 1, 1)
    try:
        found = lc.conv2d(
            x, w, stride=(2, 1, 1), padding=padding, groups=groups, algorithm=algorithm
        )
    except SpecError:
        assert algorithm in ("winograd", "fft", "depthwise", "separable")
        return
    assert found.shape == (1, 16, 1, 9, 9)
    assert not found.any()


def test_every_method_reads_its_input_only(tmp_path: Path) -> None:
    *_, last = lines = _lines(tmp_path, "chosen")
    ran = {line.split(" ", 2)[2]: int(line.split()[1]) for line in lines if line.startswith("ran")}
    assert ran.keys() == chosen_cases().keys(), last
    # The printed form takes only kernels that are higher than their stride.
    few = {name for name in ran if name.startswith("im2win:form=printed")}
    assert min(count for name, count in ran.items() if name not in few) >= 2, ran
    assert all(ran[name] >= 1 for name in few), ran
    assert sum(ran.values()) > 130, ran


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(12))
def test_every_method_reads_its_input_only_thousands_of_times(number: int, tmp_path: Path) -> None:
    words = _lines(tmp_path, str(number * 10**6), str(RANDOM_S))[-1].split()
    assert words[0] == "done"
    assert int(words[1]) > int(words[3])


def test_a_page_beside_an_array_cannot_be_read() -> None:
    program = (
        "import ctypes, numpy as np; from support.paged import Paged\n"
        "array = Paged(np.arange(5.0), at_end={}).array\n"
        "ctypes.string_at(array.ctypes.data {}, 1)"
    )
    for at_end, reach, dies in ((True, "+ 39", False), (True, "+ 40", True), (False, "- 1", True)):
        code = program.format(at_end, reach)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        result = subprocess.run([sys.executable, "-c", code], env=env, timeout=HANG_S)
        assert (result.returncode != 0) == dies, code


def test_a_page_is_checked_for_what_was_written() -> None:
    guarded = Paged.before_end(np.arange(5.0))
    guarded.check()
    guarded.memory[-41] = 0
    with pytest.raises(AssertionError, match="before the start"):
        guarded.check()
