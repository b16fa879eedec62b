"""LSTM, GRU and RNN of files, against ONNX Runtime: random options, layouts, opsets, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.errors import LeanConvError, ModelError
from leanconv.kernels import recurrence
from support.control_flow import node
from support.loops import body, compiled, hold, loop
from support.loops import made as loops_made
from support.onnx_models import reference

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
# Functions with the parameters that they take; ONNX Runtime's defaults of some are not ONNX's.
ALPHAS = {
    "LeakyRelu": 0.1,
    "ThresholdedRelu": 0.3,
    "HardSigmoid": 0.25,
    "Elu": 0.7,
    "Affine": 0.8,
    "ScaledTanh": 1.3,
}
BETAS = {"HardSigmoid": 0.4, "Affine": 0.1, "ScaledTanh": 0.6}
BOUNDED = ("Tanh", "Sigmoid", "HardSigmoid", "Softsign", "ScaledTanh")  # so that nothing grows
ALL = (*BOUNDED, "Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "Elu", "Softplus")


def model(
    op: str,
    sizes: tuple[int, int, int, int],
    *,
    seed: int = 0,
    opset: int = 14,
    inputs: tuple[str, ...] = ("B",),
    at_run: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    symbols: bool = False,
    dtype: Any = np.float32,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A file of one node, and its inputs.

    Args:
        op: the layer.
        sizes: steps, batch, input, hidden units.
        seed: of the numbers.
        opset: of the file.
        inputs: the optional ones that there are: B, lengths, h0, c0, P.
        at_run: weights that are given at run time.
        outputs: names, "" for one that is not used; all by default.
        symbols: whether the steps and the batch are open.
        dtype: of the numbers.
        **attributes: the node's.
    """
    (steps, batch, size, hidden), gates = sizes, GATES[op]
    two = 2 if attributes.get("direction") == "bidirectional" else 1
    turned = attributes.get("layout", 0)
    generator = np.random.default_rng(seed)
    state = (batch, two, hidden) if turned else (two, batch, hidden)
    shapes = {
        "X": (batch, steps, size) if turned else (steps, batch, size),
        "W": (two, gates * hidden, size),
        "R": (two, gates * hidden, hidden),
        "B": (two, 2 * gates * hidden),
        "lengths": (batch,),
        "h0": state,
        "c0": state,
        "P": (two, 3 * hidden),
    }
    order = ["X", "W", "R", *("B", "lengths", "h0", "c0", "P")[: 5 if op == "LSTM" else 3]]
    used = ("X", "W", "R", *inputs)
    arrays = {n: generator.normal(0, 0.5, shapes[n]).astype(dtype) for n in order if n in used}
    if "lengths" in arrays:
        arrays["lengths"] = generator.integers(1, steps + 1, batch).astype(np.int32)
    names = outputs or ("Y", "Y_h", "Y_c")[: 3 if op == "LSTM" else 2]
    read = [name if name in arrays else "" for name in order]
    attributes = {"hidden_size": hidden, **attributes}
    node = helper.make_node(op, read, list(names), name="layer", **attributes)
    held = {n for n in ("W", "R", "B", "P") if n in arrays} - set(at_run)
    open_axes = {steps: "t", batch: "n"} if symbols and steps != batch else {}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = [
        helper.make_tensor_value_info(
            name,
            TensorProto.INT32 if name == "lengths" else kind,
            [
                open_axes.get(e, e) if name in ("X", "lengths", "h0", "c0") else e
                for e in array.shape
            ],
        )
        for name, array in arrays.items()
        if name not in held
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name in names if name]
    weights = [numpy_helper.from_array(arrays[name], name) for name in sorted(held)]
    graph = helper.make_graph([node], "layer", given, results, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made, {name: array for name, array in arrays.items() if name not in held}


def check(made: onnx.ModelProto, inputs: dict[str, np.ndarray], allowed: float = 3e-5) -> None:
    """What ONNX Runtime computes, whose sigmoid and tanh are rational functions."""
    expected = reference(made, inputs)
    found = lc.load(made, threads=1).run(inputs)
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape
        assert np.abs(found[name] - wanted).max() <= allowed * max(1.0, np.abs(wanted).max()), name


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(24))
def test_random_options(seed: int) -> None:
    generator = np.random.default_rng(seed)

    def chance(share: float) -> bool:
        return bool(generator.random() < share)

    op = ("LSTM", "GRU", "RNN")[seed % 3]
    direction = ("forward", "reverse", "bidirectional")[seed // 3 % 3]
    sizes = tuple(
        int(generator.choice(each)) for each in ((1, 2, 5), (1, 3, 8, 17), (1, 6), (3, 20))
    )
    attributes: dict[str, Any] = {"direction": direction}
    if chance(0.6):
        count = FUNCTIONS[op] * (2 if direction == "bidirectional" else 1)
        names = [str(each) for each in generator.choice(ALL if sizes[0] < 3 else BOUNDED, count)]
        attributes["activations"] = names
        for key, numbers in (("activation_alpha", ALPHAS), ("activation_beta", BETAS)):
            given = [numbers[name] for name in names if name in numbers]
            attributes.update({key: given} if given else {})
    if chance(0.3):
        attributes["clip"] = 0.7
    if op == "GRU":
        attributes["linear_before_reset"] = int(chance(0.5))
    if op == "LSTM":
        attributes["input_forget"] = int(chance(0.3))
    inputs = tuple(name for name in ("B", "lengths", "h0", "c0", "P") if chance(0.5))
    at_run = ("W", "R", "B", "P") if chance(0.2) else ()
    opset = int(generator.choice([7, 14, 22]))
    options = {"opset": opset, "inputs": inputs, "at_run": at_run, "symbols": chance(0.5)}
    check(*model(op, sizes, seed=seed, **options, **attributes))  # type: ignore[arg-type]


@pytest.mark.parametrize("op", GATES)
def test_unused_outputs(op: str) -> None:
    for outputs in (("Y",), ("", "Y_h"), ("", "", "Y_c"))[: 3 if op == "LSTM" else 2]:
        check(*model(op, (3, 2, 4, 5), outputs=outputs))


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op: str) -> None:
    """ONNX Runtime has no layout 1: it is that of layout 0 with axes exchanged."""
    inputs = ("B", "lengths", "h0", "c0")
    first, given = model(op, (4, 3, 5, 6), inputs=inputs, layout=1, direction="bidirectional")
    usual, _ = model(op, (4, 3, 5, 6), inputs=inputs, direction="bidirectional")
    axes = {name: np.moveaxis(a, 1, 0) if a.ndim == 3 else a for name, a in given.items()}
    expected = reference(usual, axes)
    found = lc.load(first, threads=1).run(given)
    np.testing.assert_allclose(found["Y"], np.moveaxis(expected["Y"], 2, 0), atol=3e-5)
    np.testing.assert_allclose(found["Y_h"], np.moveaxis(expected["Y_h"], 1, 0), atol=3e-5)


def test_double_precision() -> None:
    for op in GATES:
        wide, given = model(op, (4, 3, 5, 6), inputs=("B", "h0"), dtype=np.float64)
        usual, single = model(op, (4, 3, 5, 6), inputs=("B", "h0"))
        y = lc.load(wide, threads=1).run(given)["Y"]
        assert y.dtype == np.float64
        np.testing.assert_allclose(y, lc.load(usual).run(single)["Y"], atol=1e-6)
        promoted = lc.load(usual, dtype="float64").run(single)["Y"]
        np.testing.assert_allclose(y, promoted, atol=1e-6)


def test_every_size_of_open_axes() -> None:
    for op in GATES:
        made, _ = model(op, (3, 2, 5, 20), symbols=True, direction="bidirectional")
        net = lc.load(made, threads=1)
        for steps, batch in ((1, 1), (1, 5), (7, 1), (2, 3), (9, 17), (4, 40)):
            _, given = model(op, (steps, batch, 5, 20), direction="bidirectional")
            for name, wanted in reference(made, given).items():
                np.testing.assert_allclose(net.run(given)[name], wanted, atol=3e-5)


@pytest.mark.parametrize("op", GATES)
def test_layers_whose_threads_share_each_step(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those are computed that have more weights than one core keeps."""
    monkeypatch.setattr(recurrence, "_in_rounds", lambda *_: True)
    made, _ = model(op, (3, 2, 5, 40), symbols=True, direction="bidirectional")
    nets = [lc.load(made, threads=threads) for threads in (1, 2, 3)]
    for steps, batch in ((1, 1), (7, 1), (2, 3), (9, 4)):
        _, given = model(op, (steps, batch, 5, 40), direction="bidirectional")
        first, *others = (net.run(given) for net in nets)
        for name, wanted in reference(made, given).items():
            np.testing.assert_allclose(first[name], wanted, atol=3e-5)
            assert all(each[name].tobytes() == first[name].tobytes() for each in others)


def test_shared_steps_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of a loop's body begin behind rounds of the layer before it, and hold others."""
    monkeypatch.setattr(recurrence, "_in_rounds", lambda *_: True)
    hold(monkeypatch)
    weights = np.random.default_rng(2).standard_normal((2, 1, 24, 6)).astype(np.float32) / 3
    held = {"w": weights[0], "r": weights[1], "one": np.array([1])}

    def layer(x: str, y: str) -> list[onnx.NodeProto]:
        return [
            node("LSTM", f"{x} w r", f"{y}4", hidden_size=6),
            node("Squeeze", f"{y}4 one", y),
        ]

    inside = body([*layer("s", "t")], "t")
    nodes = [*layer("x", "a"), loop("n true a", "b", inside), *layer("b", "y")]
    x = np.random.default_rng(3).standard_normal((5, 2, 6)).astype(np.float32)
    compiled(loops_made(nodes, shape=x.shape, **held), x)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"direction": "sideways"}, "direction is 'sideways'; expected forward"),
        ({"activations": ["Tanh"]}, "got 1 activations; expected 3 for each direction"),
        ({"activations": ["Tanh", "Tanh", "Cos"]}, "the activation 'Cos' is not supported"),
        ({"clip": -1.0}, "clip is -1.0; expected a positive number"),
        ({"hidden_size": 7}, "hidden_size is 7; expected 6"),
        ({"layout": 3}, "layout is 3; expected 0 or 1"),
    ],
)
def test_refusals(attributes: dict[str, Any], text: str) -> None:
    made, _ = model("LSTM", (3, 2, 5, 6), **attributes)
    with pytest.raises(LeanConvError, match=text):
        lc.load(made)


def test_operands_that_do_not_fit() -> None:
    for name, shape in (("R", (1, 24, 5)), ("W", (1, 20, 5)), ("B", (1, 24)), ("R", (2, 24, 6))):
        made, _ = model("LSTM", (3, 2, 5, 6))
        for held in made.graph.initializer:
            if held.name == name:
                held.CopyFrom(numpy_helper.from_array(np.zeros(shape, np.float32), name))
        with pytest.raises(ModelError, match="node 'layer'"):
            lc.load(made)
