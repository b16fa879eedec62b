"""Random networks with control flow, judged by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.graph.convert import loop_bodies
from leanconv.graph.onnx_import import read_model
from leanconv.graph.regions import regions_of
from support.control_flow import RandomFlow
from support.onnx_models import agree, reference

SHAPES = ((1, 3, 4, 5), (2, 3, 7, 4), (1, 3, 9, 9))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(12))
def test_what_is_bound(seed: int) -> None:
    proto = RandomFlow(seed).model()
    for shape in SHAPES:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        agree(proto, {"x": x})


@pytest.mark.parametrize("seed", range(100, 103))
def test_what_is_compiled(seed: int) -> None:
    proto = RandomFlow(seed).model()
    net = lc.load(proto.SerializeToString(), threads=2)
    for shape in SHAPES:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(
                net.run({"x": x})[name], wanted, atol=1e-4 * max(1, np.abs(wanted).max())
            )


LOOPING = (201, 204, 205, 212, 218, 220)  # seeds


def looping(seed: int) -> bytes:
    """A network of loops that nodes can hold."""
    return RandomFlow(seed, least=3, most=5).model().SerializeToString()


@pytest.mark.drawn
@pytest.mark.parametrize("seed", LOOPING)
def test_loops_that_are_held_and_written_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, nets = looping(seed), []
    for few in (0, 2048):
        monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", few)
        nets.append(lc.load(data, threads=2))
        for shape in SHAPES[:2]:
            nets[-1].bind({"x": shape})
    for shape in SHAPES[:2]:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        found = [net.run({"x": x}) for net in nets]
        for name, wanted in reference(onnx.load_from_string(data), {"x": x}).items():
            most = 1e-4 * max(1, np.abs(wanted).max())
            for each in found:
                np.testing.assert_allclose(each[name], wanted, rtol=0, atol=most)


def test_loops_in_loops_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", 0)
    held = inside = 0
    for seed in LOOPING:
        regions = list(regions_of(read_model(looping(seed)).bind({"x": SHAPES[0]})))
        held += len(regions)
        inside += sum(len(list(regions_of(region.graph))) for region in regions)
    assert held > 6
    assert inside > 6


@pytest.mark.drawn
@pytest.mark.parametrize("seed", [203, 208, 217, 236])
def test_loops_that_are_held_are_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", 0)
    for shape in SHAPES:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        agree(onnx.load_from_string(looping(seed)), {"x": x})
