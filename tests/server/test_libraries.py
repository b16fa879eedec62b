"""Compiled libraries that are served: as networks of fixed shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import BudgetError, InputError
from support.opened_libraries import library, linked
from support.served import LIMITS, results, serving, small_net

pytestmark = linked
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("f4")


def made(folder: Path, name: str, batches: tuple[int, ...]) -> Path:
    shapes = [(batch, 3, 8, 8) for batch in batches]
    return library(folder, onnx.load(small_net(folder / "small.onnx")), name, shapes=shapes)


def test_a_library_is_served_for_the_shapes_that_it_has(tmp_path: Path) -> None:
    one, two = made(tmp_path, "one", (1,)), made(tmp_path, "two", (1, 2))
    with serving([str(one), f"named={two}"], replace(LIMITS, groups=0)) as running:
        (y,) = results(running.infer("one", {"x": IMAGES[:1]})).values()
        assert np.array_equal(y, lc.open(one)(IMAGES[:1]))
        for rows in (1, 2):
            (y,) = results(running.infer("named", {"x": IMAGES[:rows]})).values()
            assert np.array_equal(y, lc.open(two)(IMAGES[:rows]))
        answer = running.infer("named", {"x": np.concatenate([IMAGES, IMAGES])})
        assert answer.status_code == 400
        assert "not planned" in answer.text
        described = running.client.get("/v2/models/named").json()
        assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
        assert "1x3x8x8" in running.client.get("/").text
        answer = running.client.get("/plans/one/1/0")
        assert (answer.status_code, "no page" in answer.text) == (404, True)
        held = [model.plans.held_bytes for model in running.service.models]
        assert held[0] >= one.stat().st_size + lc.open(one).facts["block_bytes"]


def test_shapes_and_limits_that_a_library_does_not_take(tmp_path: Path) -> None:
    file = str(made(tmp_path, "one", (1,)))
    with pytest.raises(InputError, match="does not fit input 'x'"):
        with serving([file], shapes={"": [{"": (1, 3, 9, 9)}]}):
            pass
    with pytest.raises(BudgetError, match=r"libone\.so.*are left"):
        with serving(
            [file], memory_limit=(1 << 20) + 10_000, limits=replace(LIMITS, request_bytes=1 << 20)
        ):
            pass
    (tmp_path / "libempty.so").touch()
    with pytest.raises(InputError, match="no shared library"):
        with serving([str(tmp_path / "libempty.so")]):
            pass
