"""Reproducible plans: an image gives the same bits alone and in any batch, with any threads.

Also where an algorithm is named and its parameters are left open. A few problems always; thousands
with `pytest -m exhaustive tests/conv`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from support.convolution_forms import FORMS, Form, cases
from support.problems import Problem

LINES = ("ic20ih35iw23oc35kh3sh2ph1", "ic16ih9oc32kh3ph1", "g32ic32ih9oc32kh3ph1")
OPEN = (
    "winograd:m=4",
    "winograd:sums=16",
    "winograd:tiles=4",
    "winograd:rows=2",
    "winograd:vectors=1",
    "winograd:edges=narrow",
    "winograd:form=stages",
    "im2win:rows=2",
    "im2win:form=high",
    "mec:T=20",
)
NAMES = (*ALGORITHMS, *OPEN)


def check_batches(spec: ConvSpec, number: int, algorithm: str, *batches: int) -> bool:
    """Raise where the batch or the threads change a bit of an image.

    Returns:
        False if the algorithm refuses one image; then nothing is checked.
    """
    whole = Problem(replace(spec, batch=max(batches), residual=False), number)
    arrays = whole.arrays(False)

    def run(x: np.ndarray, threads: int) -> np.ndarray:
        plan = lc.plan_conv2d(
            x.shape,
            arrays.w,
            arrays.bias,
            slope=arrays.slope,
            algorithm=algorithm,
            threads=threads,
            reproducible=True,
            **whole.options,
        )
        return plan(x)

    try:
        alone = run(arrays.x[1:2], 1)
    except SpecError:
        return False
    for batch in batches:
        together = run(arrays.x[:batch], 2)
        np.testing.assert_array_equal(together[1:2], alone, f"{algorithm}, {batch} images")
    return True


@pytest.mark.drawn
@pytest.mark.parametrize("algorithm", NAMES)
def test_a_named_algorithm_gives_an_image_the_same_bits_in_any_batch(algorithm: str) -> None:
    masked = algorithm.startswith("winograd") and not host().runtime_masks  # in planes
    layout = "NHWC" if algorithm == "depthwise" or masked else "NCHW"
    specs = [ConvSpec.parse(line, layout=layout, bias=True) for line in LINES]
    first = check_batches(specs[0], 1, algorithm, 2, 3)
    assert check_batches(specs[1 if first else 2], 1, algorithm, 3)


def test_the_tile_of_an_fft_is_chosen_for_one_image() -> None:
    """By its estimates, two images of this problem are faster with tiles of 32 than of 16."""
    assert check_batches(ConvSpec.parse("ic16ih40oc16kh11ph5"), 2, "fft", 3)


def test_a_limit_of_memory_never_changes_the_bits() -> None:
    """Only choices that sum in the same order save bytes; where these do not fit, none is taken."""
    layout = "NCHW" if host().runtime_masks else "NHWC"
    spec = ConvSpec.parse("mb3ic48ih21oc80kh3ph1", layout=layout)
    arrays = Problem(spec, 4).arrays(False)

    def plan(x: np.ndarray, **options: object) -> lc.ConvPlan:
        fixed = {"algorithm": "winograd", "threads": 2, "reproducible": True, "padding": 1}
        fixed["layout"] = layout
        return lc.plan_conv2d(x.shape, arrays.w, **fixed, **options)

    found = set()
    for x in (arrays.x[:1], arrays.x):
        made = plan(x)
        with pytest.raises(lc.BudgetError) as error:
            plan(x, memory_limit=1)
        least = error.value.smallest_bytes
        for limit in (least, (least + made.memory_bytes) // 2, made.memory_bytes):
            lean = plan(x, memory_limit=limit)
            found.add(lean(x)[0].tobytes())
    assert len(found) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_gives_an_image_the_same_bits_in_any_batch(form: Form) -> None:
    @given(cases(form))
    def each(case: tuple[Problem, str, str]) -> None:
        problem, _, algorithm = case
        if not check_batches(problem.spec, problem.seed, algorithm, 2, 3):
            reject()

    many = settings(
        max_examples=40,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    seed(0)(many(each))()
