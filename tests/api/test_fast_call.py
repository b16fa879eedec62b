"""Arrays that a run writes live until it is done, whoever is given them afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.inputs import Shape
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.runtime.outputs import Outputs
from support.network_models import images, model


def test_outputs_live_while_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[weakref.ref[np.ndarray]] = []
    seen: list[bool] = []
    timed = CompiledNetwork.time_steps

    def new_array(self: Outputs, shape: Shape, dtype: str) -> np.ndarray:
        array = np.empty(shape, dtype)
        outputs.append(weakref.ref(array))
        return array

    def time_steps(
        self: CompiledNetwork, addresses: Sequence[int], repeats: int
    ) -> list[list[int]]:
        seen.extend(output() is not None for output in outputs)
        return timed(self, addresses, repeats)

    monkeypatch.setattr(Outputs, "new_array", new_array)
    monkeypatch.setattr(CompiledNetwork, "time_steps", time_steps)
    built = model("squeezenet_like")
    lc.load(built).profile(images(built, 1), repeats=1)
    assert seen[-1], "the output is freed before the kernels write it"
