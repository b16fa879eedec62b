"""Arrays that a run writes live until it is done, whoever is given them afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.inputs import Shape
from leanconv.half_arrays import numpy_dtype
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.runtime.memory import Outputs
from leanconv.types import DType
from support.network_models import images, model


def test_outputs_live_while_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[weakref.ref[np.ndarray]] = []
    seen: list[bool] = []
    timed = CompiledNetwork.time_steps

    def maker(self: Outputs, shape: Shape, dtype: DType) -> Callable[[], tuple[np.ndarray, int]]:
        def new() -> tuple[np.ndarray, int]:
            array = np.empty(shape, numpy_dtype(dtype))
            outputs.append(weakref.ref(array))
            return array, array.ctypes.data

        return new

    def time_steps(
        self: CompiledNetwork, addresses: Sequence[int], repeats: int
    ) -> list[list[int]]:
        seen.extend(output() is not None for output in outputs)
        return timed(self, addresses, repeats)

    monkeypatch.setattr(Outputs, "maker", maker)
    monkeypatch.setattr(CompiledNetwork, "time_steps", time_steps)
    built = model("squeezenet_like")
    lc.load(built).profile(images(built, 1), repeats=1)
    assert seen[-1], "the output is freed before the kernels write it"
