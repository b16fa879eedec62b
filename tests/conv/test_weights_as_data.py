"""Weights that change: nothing is planned or compiled again, and plans without weights take any."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import leanconv as lc
from leanconv.api import compiled_conv, kept_plans
from leanconv.api.compiled_conv import PackingConv
from leanconv.api.conv_arguments import Constants, checked_spec
from leanconv.api.layer_plan import CompiledLayer, PackedConstants
from leanconv.api.options import PlanOptions
from leanconv.codegen import compiler
from leanconv.planner import compiled_network
from leanconv.runtime.memory import SharedArena
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments
from support.cache_check import run_program

RNG = np.random.default_rng(0)


def whole(shape: tuple[int, ...], dtype: Any = "f4") -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(dtype)


def codes(shape: tuple[int, ...]) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype("u1")


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan is kept."""
    kept_plans._layer.cache_clear()
    cache = kept_plans.PlanCache[kept_plans.KeptPlan](2**28, keep_newest=False)
    monkeypatch.setattr(kept_plans, "kept_plans", lambda: cache)


# Of each kind: images of two sizes, weights, and a call.
KINDS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray], Any]] = {
    "floats": (whole, lambda: whole((12, 8, 3, 3)), lc.conv2d),
    "integers": (codes, lambda: RNG.integers(-100, 101, (12, 8, 3, 3)).astype("i1"), lc.conv2d),
    "transposed": (whole, lambda: whole((8, 12, 3, 3)), lc.conv_transpose2d),
}


@pytest.mark.parametrize("kind", KINDS)
def test_changed_weights_plan_and_compile_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any size that was seen, whether they lie in the same array or in another one."""
    image, weights, call = KINDS[kind]
    images = [image((1, 8, n, n + 3)) for n in (9, 14, 11)]
    w = weights()
    for x in images:
        call(x, w, padding=1)
    made: list[str] = []

    def counted(owner: Any, name: str) -> None:
        plain = getattr(owner, name)
        said = lambda *given, **more: (made.append(name), plain(*given, **more))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, said)

    counted(kept_plans, "compiled_layer")
    counted(CompiledLayer, "__init__")
    counted(compiled_network.CompiledNetwork, "__init__")
    counted(compiled_conv, "candidate_program")
    counted(compiler, "emitted_instance")
    found = []
    for _ in range(3):
        w[...] = weights()
        for given in (w, w.copy()):
            found += [(x, w.copy(), call(x, given, padding=1)) for x in images]
    assert not made
    monkeypatch.undo()
    planned = lc.plan_conv_transpose2d if kind == "transposed" else lc.plan_conv2d
    for x, held, y in found[::4]:
        np.testing.assert_array_equal(y, planned(x.shape, held, padding=1)(x))


def test_layers_of_one_shape_share_their_code_and_workspace() -> None:
    x, weights = whole((1, 8, 10, 10)), [whole((8, 8, 3, 3)) for _ in range(3)]
    for w in weights:
        lc.conv2d(x, w, padding=1, algorithm="im2col")
    kept = [each for each, _ in kept_plans.kept_plans()._plans.values()]
    assert len({id(each.plan.layer) for each in kept}) == 1
    assert len({id(each.plan.packed) for each in kept}) == 3
    apart = sum(each.plan.packed.bytes + each.copy.bytes + 2**16 for each in kept)
    held = kept_plans.kept_plans().held_bytes
    assert held == apart + kept[0].plan.layer.workspace_bytes


def test_weights_that_become_tiny_are_planned_for() -> None:
    """Transforms would lose them: what was planned for others computes them no more."""
    x, w = np.ones((1, 16, 20, 20), "f4"), np.ones((16, 16, 3, 3), "f4")
    lc.conv2d(x, w)
    w[...] = 1e-36
    right = np.full((1, 16, 18, 18), 144e-36)
    np.testing.assert_allclose(lc.conv2d(x, w), right, 1e-5)


def test_integers_whose_sums_need_more_bits_stay_exact() -> None:
    x, w = codes((1, 64, 12, 12)), np.ones((16, 64, 3, 3), "i1")
    for number in (1, -128, 127, 3):
        w[...] = number
        right = lc.conv2d(x.astype("f8"), w.astype("f8"), algorithm="naive")
        np.testing.assert_array_equal(lc.conv2d(x, w), right)


SHAPES: list[dict[str, Any]] = [
    {"x": (2, 6, 9, 8), "w": (10, 3, 3, 3), "groups": 2, "padding": 1},
    {"x": (1, 9, 8, 6), "w": (5, 6, 3, 3), "layout": "NHWC", "activation": "relu"},
    {"x": (1, 8, 12), "w": (8, 1, 3), "groups": 8, "stride": 2},
    {"x": (1, 3, 10, 10), "w": (4, 3, 1, 1), "activation": "prelu"},
]


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", SHAPES)
def test_a_plan_without_weights_takes_any(case: dict[str, Any], dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = {name: value for name, value in case.items() if name not in ("x", "w")}
    plan = lc.plan_conv2d(case["x"], w_shape=case["w"], x_dtype=dtype, threads=1, **given)
    assert plan.used_bytes == plan.memory_bytes  # type: ignore[attr-defined]
    prelu = given.get("activation") == "prelu"
    for step in range(3):
        x, w, bias = (whole(s, kind) for s in (case["x"], case["w"], case["w"][:1]))
        slope = {"slope": whole(case["w"][:1], kind)} if prelu else {}
        more = (bias,) if step else ()
        right = lc.conv2d(x, w, *more, **slope, **given, algorithm="direct", threads=1)
        np.testing.assert_array_equal(plan(x, w, *more, **slope), right)
        out = np.empty(right.shape, kind)
        assert plan(x, w, *more, **slope, out=out) is out  # type: ignore[call-arg]
        np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_transposed_plan_without_weights_takes_any(dtype: str) -> None:
    given: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2, "threads": 1}
    plan = lc.plan_conv_transpose2d((2, 8, 7, 9), w_shape=(8, 3, 3, 3), x_dtype=dtype, **given)
    for _ in range(3):
        x, w, bias = (whole(shape, dtype) for shape in ((2, 8, 7, 9), (8, 3, 3, 3), (6,)))
        right = lc.conv_transpose2d(x, w, bias, **given)
        np.testing.assert_array_equal(plan(x, w, bias), right)
        np.testing.assert_array_equal(plan(x, w), lc.conv_transpose2d(x, w, **given))


def test_packing_counts_where_the_algorithm_is_chosen() -> None:
    """Many weights for few outputs: those with fewer packed bytes come first."""
    x, w = (1, 256, 14, 14), whole((256, 256, 3, 3))
    plan = lc.plan_conv2d(x, w_shape=w.shape, padding=1, threads=1)
    assert plan.weight_bytes <= lc.plan_conv2d(x, w, padding=1, threads=1).weight_bytes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"w": whole((4, 3, 3, 3))}, "got w_shape with w, bias or slope; expected it alone"),
        ({"padding_mode": "reflect"}, "w_shape with device or padding_mode"),
        ({"w_shape": (4, 3)}, "w_shape is 4x3; expected extents"),
        ({"w_shape": (4, 3, 0, 3)}, "w_shape is 4x3x0x3; expected extents of at least 1"),
        ({"w_shape": "3"}, "the shape of w_shape is '3'; expected integers"),
        ({"x_dtype": "int8"}, "x_dtype is 'int8'; expected one of float32"),
        ({"groups": 2}, "x has 3 channels and w takes 3 in each of 2 group"),
    ],
)
def test_what_fits_no_plan_without_weights_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(lc.SpecError, match=message):
        lc.plan_conv2d((1, 3, 8, 8), **{"w_shape": (4, 3, 3, 3), **more})


def test_weights_of_another_shape_are_refused() -> None:
    """What packs them reads memory by the shapes that were planned for."""
    x, w = whole((1, 3, 8, 8)), whole((4, 3, 3, 3))
    plan = lc.plan_conv2d(x.shape, w)
    for wrong in (w[:3], w.astype("f8"), w.tolist()):
        with pytest.raises(lc.InputError, match=r"w is .*expected"):
            plan.repack(wrong, None)  # type: ignore[attr-defined]
    with pytest.raises(lc.InputError, match="bias is given, but the plan has none"):
        plan.repack(w, w[:, 0, 0, 0])  # type: ignore[attr-defined]
    with pytest.raises(lc.InputError, match=r"w is float32\[3x3x3x3\]; expected"):
        lc.plan_conv2d(x.shape, w_shape=w.shape)(x, w[:3])


def test_all_kinds_of_plans_are_packed_again() -> None:
    for kind, (image, weights, call) in KINDS.items():
        x, w, other = image((1, 8, 9, 9)), weights(), weights()
        planned = lc.plan_conv_transpose2d if kind == "transposed" else lc.plan_conv2d
        plan: Any = planned(x.shape, w)
        shared = copy.copy(plan)
        plan.repack(other)
        np.testing.assert_array_equal(plan(x), call(x, other))
        np.testing.assert_array_equal(shared(x), plan(x))
        assert isinstance(plan, lc.LayerPlan)
        assert isinstance(plan.packed, PackedConstants)
        assert (plan.algorithm, plan.threads) == (plan.layer.algorithm, plan.layer.threads)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_keeps_no_weights_but_those_that_it_packed(kind: str) -> None:
    image, weights, _ = KINDS[kind]
    w = weights()
    planned = lc.plan_conv_transpose2d if kind == "transposed" else lc.plan_conv2d
    plan, given = planned(image((1, 8, 9, 9)).shape, w), weakref.ref(w)
    del w
    gc.collect()
    assert given() is None
    assert plan.weight_bytes > 0


def test_arrays_that_share_memory_are_packed_apart() -> None:
    """A bias that lies in the weights was once read from there for other weights, too."""
    w = whole((4, 4, 3, 3))
    bias = w.reshape(-1)[:4]
    x = whole((1, 4, 6, 6))
    plan: Any = lc.plan_conv2d(x.shape, w, bias, activation="prelu", slope=bias)
    others = whole(w.shape), whole((4,)), whole((4,))
    plan.repack(*others)
    right = lc.conv2d(x, *others[:2], activation="prelu", slope=others[2], algorithm="direct")
    np.testing.assert_array_equal(plan(x), right)


@pytest.mark.parametrize("kind", KINDS)
def test_one_convolution_imports_no_reader_of_files(kind: str) -> None:
    body = {
        "floats": "lc.conv2d(x, w)",
        "integers": "lc.conv2d(x.astype('u1'), w.astype('i1'))",
        "transposed": "lc.conv_transpose2d(x, w)",
    }[kind]
    program = f"""
import sys
import numpy as np
import leanconv as lc
x, w = np.ones((1, 4, 6, 6), "f4"), np.ones((4, 4, 3, 3), "f4")
{body}
print([name for name in sys.modules if name.startswith("leanconv.graph.onnx")])
print("leanconv.graph.convert" in sys.modules)
"""
    result = run_program(program)
    assert result.stdout.split("\n")[:2] == ["[]", "False"], result.stderr


def test_a_deep_copy_runs_while_its_plan_packs() -> None:
    x, w = whole((1, 4, 6, 6)), whole((4, 4, 3, 3))
    plan: Any = lc.plan_conv2d(x.shape, w_shape=w.shape)
    right, other = plan(x, w), copy.deepcopy(plan)
    with plan._packing.held:  # else this thread would be refused as one within a run
        np.testing.assert_array_equal(other(x, w), right)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("algorithm", ["direct", "winograd:m=4", "im2col", "mec", "fft"])
def test_one_native_call_packs_and_convolves(algorithm: str, dtype: str, threads: int) -> None:
    """Weights in any order, with and without a bias, in an arena that others have used."""
    x, bias = whole((2, 24, 9, 9), dtype), whole((40,), dtype)
    options = PlanOptions(algorithm=algorithm, threads=threads, packs=True)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
        w = whole((40, 24, 3, 3), dtype)
        w = np.ascontiguousarray(w.transpose(order)).transpose(np.argsort(order))
        for given in (Constants(w, bias), Constants(w)):
            spec = checked_spec(x.shape, given, ConvArguments(1, 1, 1, 1, None, "NCHW"), False)
            conv = PackingConv(spec, given, options)
            arena = SharedArena()
            conv = conv.copied(arena)
            for _ in range(2):
                assert arena.block is not None
                arena.block.view(0, arena.block.bytes)[:] = 255
                y = np.full(spec.output_shape, np.nan, dtype)
                arrays = [each for each in (x, *given, y) if each is not None]
                conv.run_at(*(each.ctypes.data for each in arrays))
                wanted = lc.conv2d(x, w, given.bias, padding=1, algorithm="direct")
                error = 1e-4 if dtype == "f4" else 1e-12
                np.testing.assert_allclose(y, wanted, rtol=0, atol=error * abs(wanted).max())


@pytest.mark.parametrize("algorithm", ["direct", "winograd:m=4", "im2col"])
def test_weights_are_read_in_the_order_in_which_they_lie(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels last, outputs last, and with others between them, which are copied."""
    w = RNG.standard_normal((40, 24, 3, 3)).astype("f4")
    x, bias = RNG.standard_normal((2, 24, 9, 9)).astype("f4"), np.arange(40, dtype="f4")
    plan = lc.plan_conv2d(x.shape, w_shape=w.shape, padding=1, algorithm=algorithm)
    wanted = plan(x, w, bias).copy()
    made: list[str] = []
    plain = compiler.emitted_instance
    monkeypatch.setattr(
        compiler, "emitted_instance", lambda *given: (made.append(""), plain(*given))[1]
    )
    for order in ((0, 2, 3, 1), (1, 2, 3, 0), (1, 0, 2, 3), (3, 2, 1, 0)):
        back = np.argsort(order)
        lying = np.ascontiguousarray(w.transpose(order)).transpose(back)
        for _ in range(2):
            np.testing.assert_allclose(plan(x, lying, bias), wanted, rtol=0, atol=3e-5)
    seen = len(made)
    np.testing.assert_array_equal(plan(x, np.repeat(w, 2, -1)[..., ::2], bias), wanted)
    np.testing.assert_array_equal(plan(x, w.astype("f4", order="F"), bias), plan(x, w, bias))
    assert len(made) == seen, "another array of the same order compiles nothing"


def test_no_number_of_the_first_weights_decides() -> None:
    """Runs pack others: small ones, or zeros, of the first must not choose for all."""
    spec = ConvSpec.parse("mb4ic16ih14oc24oh14kh3ph1")
    options = PlanOptions.checked(None, threads=1)._replace(packs=True)
    found = set()
    for fill in (1.0, 0.0, 1e-36):
        w = np.full(spec.weight_shape, fill, np.float32)
        problem, candidate = compiled_conv._chosen_candidate(spec, Constants(w), options, None)
        found.add(str(candidate.choice.algorithm))
        assert not problem.small_weights
        assert problem.zeros is None
    assert len(found) == 1
