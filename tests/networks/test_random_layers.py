"""Random layers at random sizes are onnxruntime's; what came first decides on no bit."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from support.random_layers import layers_of_open_sizes, resized_layer, transposed_layer
from support.shape_networks import check_shapes

KINDS = {
    "ConvTranspose": transposed_layer,
    "Resize": resized_layer,
    "layers": layers_of_open_sizes,
}


def _checked(kind: str, seed: int) -> Counter[str]:
    data, shapes = KINDS[kind](Random(seed))
    return check_shapes(data, shapes)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_right(kind: str) -> None:
    counts = sum((_checked(kind, seed) for seed in range(5)), Counter[str]())
    assert not counts["refused"], counts
    assert counts["right"] >= 5, counts


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_are_right(kind: str) -> None:
    for seed in range(100, 3000):
        _checked(kind, seed)
