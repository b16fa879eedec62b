"""The ladder's forward passes against NumPy, and the report's own counts."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest

from examples.report.formats import REPORT, SMALL, Topology, weights
from examples.report.reference import forward
from harness import all_results
from ladder.forward import Forward
from ladder.kernels import RowCopy
from ladder.network import FUTURE, VERSIONS, Layer, Version, layers_of
from leanconv.types import FLOAT32, FLOAT64
from pages.ladder import DOCUMENT


def copies_of(layers: list[Layer], topology: Topology) -> int:
    """Device-to-device copies of v1: the rows of every layer's input, and one for each addition."""
    extents = {"image": topology.input_shape, **{layer.output: layer.extents for layer in layers}}
    convolved = [layer.inputs[0] for layer in layers if layer.op in ("conv", "dense")]
    return sum(prod(extents[x][:2]) for x in convolved) + sum(x.op == "add" for x in layers)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("version", [*VERSIONS, FUTURE], ids=lambda v: v.name)
def test_every_step_answers_as_numpy_does(version: Version, dtype: str) -> None:
    params = weights(SMALL.model())
    images = np.random.default_rng(1).standard_normal((2, *SMALL.input_shape)).astype(dtype)
    net = Forward(SMALL, params, version, dtype, threads=2)
    found = [net(images[0]), net(images[1]), net(images[0])]
    assert (found[0] == found[2]).all(), "a run leaves nothing behind"
    for image, logits in zip(images, found, strict=False):
        exact = forward(params, SMALL, image.astype(np.float64))
        error = np.abs(logits - exact).max() / np.abs(exact).max()
        assert error < (1e-13 if dtype == FLOAT64 else 5e-6)


def test_scalar_items_answer_the_same_bits() -> None:
    params = weights(SMALL.model())
    image = np.random.default_rng(2).standard_normal(SMALL.input_shape)
    found = [Forward(SMALL, params, VERSIONS[-1], FLOAT64, 1, n)(image) for n in (1, None)]
    assert (found[0] == found[1]).all(), "an item's sum has one order"


def test_the_copies_are_those_that_the_report_counts() -> None:
    assert copies_of(layers_of(REPORT), REPORT) == 259_926


def test_the_switches_do_what_they_say() -> None:
    params = weights(SMALL.model())
    made = {v.name: Forward(SMALL, params, v, FLOAT32, 1) for v in VERSIONS}
    image = np.zeros(SMALL.input_shape, np.float32)
    copies, allocated = {}, {}
    for name, net in made.items():
        net(image)
        rows = [x.kernel.chunks for x in net.launches if isinstance(x.kernel, RowCopy)]
        copies[name], allocated[name] = sum(rows), net.spent.allocated_bytes
    every = copies_of(layers_of(SMALL), SMALL)
    assert copies == {"v1": every, "v2.1": every, **dict.fromkeys(list(made)[2:], 3 * SMALL.image)}
    assert allocated["v1"] == allocated["v2.1"] > allocated["v2.2"] > 0
    assert allocated["v3.1"] == allocated["v3.2"] == allocated["v3.3"] == 0


@pytest.mark.parametrize("file", all_results("ladder"), ids=lambda file: file.parent.name)
def test_every_version_has_its_copies_of_rows(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    for setting in document["settings"]:
        assert [v["name"] for v in setting["versions"]] == list(DOCUMENT)
        assert setting["versions"][0]["row_copies"] in (259_926, 231_114)
