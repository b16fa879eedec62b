"""Sizes of a map share packed weights: of every algorithm one recipe means the same bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choices
from leanconv.codegen.geometry import Access
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.target import preset
from support.packing import packed_constants

_SIZES = ((1, 9), (5, 6), (16, 40), (33, 17))
_LAYERS = (
    "ic24oc40kh3ph1", "g4ic24oc60kh3ph1", "g40ic40oc40kh3ph1", "g40ic40oc40kh5sh2ph2",
    "ic20oc35kh1", "ic1oc6kh7ph3", "ic3oc2kh1", "g6ic6oc18kh3ph1",
)  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("layer", _LAYERS)
@pytest.mark.parametrize("machine", ["znver4", "haswell"])
def test_one_recipe_has_the_same_bytes(layer: str, machine: str) -> None:
    packed, shared = dict[object, dict[str, bytes]](), 0
    random = np.random.default_rng(0)
    weights = None
    groups, _, rest = layer.rpartition("ic")
    for (high, wide), form in product(_SIZES, [PLAIN, Format(16)]):
        line = f"{groups}ic{rest}".replace("oc", f"ih{high}iw{wide}oc", 1)
        spec = ConvSpec.parse(line)
        if weights is None:
            weights = random.standard_normal(spec.weight_shape).astype(np.float32)
        x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
        for _, candidate in choices(Problem.of(spec, x, y), preset(machine)):
            recipe = candidate.packing_recipe(())
            if recipe is None:
                continue
            made = packed_constants(candidate, weights)
            found = {role: array.tobytes() for role, array in made.items()}
            shared += recipe in packed
            assert packed.setdefault(recipe, found) == found, (line, str(candidate.choice))
    assert shared
