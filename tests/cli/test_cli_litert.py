"""What LiteRT is given: files that answer as ONNX Runtime does, and refusals that name what lacks.

Without the package ai-edge-litert, which has the schema of the format, none of this is tested.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from leanconv.cli.bench import conv_model
from leanconv.cli.engines.processes import ENGINES, EngineProcess, Installed
from leanconv.cli.engines.rounds import difference
from leanconv.errors import UnsupportedError
from leanconv.reference.direct import convolve
from leanconv.spec.conv import ConvSpec
from support.control_flow import node
from support.grown_networks import GrownNetwork, UnfitError
from support.onnx_models import model

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert of leanconv[bench] is not installed")

from leanconv.cli.engines import engine_litert, tflite

CLOSE = 2e-5  # of the largest output: both compute in float32


def saved(folder: Path, proto: onnx.ModelProto) -> str:
    file = folder / "network.onnx"
    onnx.save(proto, file)
    return str(file)


def answers(file: str, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What LiteRT gives in its second run: copies, as it runs only when nobody reads the views."""
    run, _ = engine_litert.load(file, feed, 1)
    run()
    return [output.copy() for output in run()]


def expected(file: str, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


@pytest.mark.parametrize(
    "problem",
    [
        "ic3ih9iw8oc5kh3",
        "mb2ic3ih9iw8oc5kh3sh2ph1",
        "ic4ih8iw8oc8kh3sh2ph1",  # of even sizes the padding in front is not SAME's
        "ic4ih8iw9oc8kh1sh2",
        "ic4ih12iw11oc8kh3kw2dh1dw2ph2pw1",
        "g2ic4ih7iw7oc6kh3ph1",
        "g4ic4ih7iw9oc4kh3ph1",
        "g4ic4ih9iw9oc8kh5sh2ph2",
        "ic1ih1iw1oc1kh1",
        "ic2ih4iw5oc3kh2kw4ph3pw2",
    ],
)
def test_convolutions_are_exact(tmp_path: Path, problem: str) -> None:
    spec, random = ConvSpec.parse(problem), np.random.default_rng(0)
    weight = random.integers(-4, 5, spec.weight_shape).astype("f4")
    x = random.integers(-4, 5, spec.input_shape).astype("f4")
    file = tmp_path / "layer.onnx"
    file.write_bytes(conv_model(spec, weight))
    (found,) = answers(str(file), {"x": x})
    assert np.array_equal(found, convolve(spec, x, weight))


class LitertNetwork(GrownNetwork):
    """A random network of what is written for LiteRT."""

    def _any(self, *shape: int) -> str:
        return self._const(self._random.integers(-2, 3, shape).astype("f4"))

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._values[name][0].shape

    def _map(self) -> str:
        return self._pick("f", (4,), filled=True)

    def _window(self, x: str) -> dict[str, Any]:
        kernel = [1 + self._int(3), 1 + self._int(3)]
        pads = [self._int(taps) for taps in (*kernel, *kernel)]
        strides = [1 + self._int(3), 1 + self._int(2)]
        return {"kernel_shape": kernel, "pads": pads, "strides": strides}

    def _op_conv(self) -> None:
        x, groups = self._map(), 1
        channels, outputs = self._shape(x)[1], 1 + self._int(5)
        if self._int(2):
            groups = channels
            outputs = channels * (1 + self._int(2))
        given, more = self._window(x), [1 + self._int(2), 1 + self._int(2)]
        weights = self._any(outputs, channels // groups, *given["kernel_shape"])
        bias = f" {self._any(outputs)}" if self._int(2) else ""
        self._add("Conv", f"{x} {weights}{bias}", group=groups, dilations=more, **given)

    def _op_transposed_conv(self) -> None:
        x, taps, step = self._map(), 1 + self._int(4), 1 + self._int(2)
        weights = self._any(self._shape(x)[1], 2, taps, taps)
        pads = [max(taps - step, 0) // 2] * 2 + [-(-max(taps - step, 0) // 2)] * 2
        if taps < step:
            raise UnfitError
        given = {"pads": pads} if self._int(2) else {}
        self._add("ConvTranspose", f"{x} {weights}", strides=[step, step], **given)

    def _op_pool(self) -> None:
        x = self._map()
        if self._int(3):
            self._add("MaxPool", x, ceil_mode=self._int(2), **self._window(x))
        else:
            self._add("AveragePool", x, count_include_pad=1, **self._window(x))

    def _op_activation(self) -> None:
        x, op = self._pick("f"), ["Relu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid"]
        which = op[self._int(len(op))]
        bounds = [(0, 6), (-1, 1), (0, 1), (-2, 5)][self._int(4)]
        ends = "".join(f" {self._const(np.float32(end))}" for end in bounds)
        self._add(which, x + ends * (which == "Clip"))

    def _op_silu(self) -> None:
        x = self._pick("f")
        self._add("Mul", f"{x} {self._add('Sigmoid', x)}")

    def _op_slopes(self) -> None:
        x = self._map()
        self._add("PRelu", f"{x} {self._any(self._shape(x)[1], 1, 1)}")

    def _op_normalised(self) -> None:
        x = self._map()
        count = self._shape(x)[1]
        numbers = [self._any(count) for _ in range(3)]
        variance = self._const(self._random.integers(1, 4, count).astype("f4"))
        self._add("BatchNormalization", f"{x} {' '.join(numbers)} {variance}")

    def _op_pair(self) -> None:
        op, x = ["Add", "Sub", "Mul"][self._int(3)], self._pick("f")
        if self._int(2):
            self._add(op, f"{x} {self._pick('f')}")
        else:
            self._add(op, f"{x} {self._any(*self._shape(x)[self._int(3) :])}")

    def _op_square(self) -> None:
        self._add("Pow", f"{self._pick('f')} {self._const(np.float32(2))}")

    def _op_product(self) -> None:
        x, rank = self._pick("f", (2, 3, 4), filled=True), self._int(2)
        y = self._add("MatMul", f"{x} {self._any(self._shape(x)[-1], 3)}")
        if rank:
            self._add("Add", f"{y} {self._any(3)}")

    def _op_square_product(self) -> None:
        x = self._pick("f", (3, 4), filled=True)
        perm = [*range(self._rank(x) - 2), self._rank(x) - 1, self._rank(x) - 2]
        self._add("MatMul", f"{x} {self._add('Transpose', x, perm=perm)}")

    def _op_dense(self) -> None:
        x = self._add("Flatten", self._map())
        weights = self._any(4, self._shape(x)[1])
        self._add("Gemm", f"{x} {weights} {self._any(4)}", transB=1, alpha=2.0)

    def _op_transpose(self) -> None:
        x = self._pick("f", (2, 3, 4))
        self._add("Transpose", x, perm=self._random.permutation(self._rank(x)).tolist())

    def _op_reshape(self) -> None:
        x = self._pick("f", filled=True)
        shape = list(self._shape(x))
        cut = self._int(len(shape)) if shape else 0
        ways = [[*shape[:cut], -1], [1, *shape[:3]], [-1, *shape[cut:]], [*shape[:2], -1]]
        new = ways[self._int(4)]
        if len(new) > 4:
            raise UnfitError
        self._add("Reshape", f"{x} {self._const(np.array(new))}")

    def _op_concat(self) -> None:
        x, axis = self._pick("f", (2, 3, 4)), self._int(2)
        self._add("Concat", f"{x} {x if self._int(2) else self._pick('f')}", axis=axis)

    def _op_split(self) -> None:
        x = self._pick("f", (2, 3, 4))
        extent = self._shape(x)[1]
        if extent < 2:
            raise UnfitError
        self._add("Split", f"{x} {self._const(np.array([1, extent - 1]))}", 2, axis=1)

    def _op_slice(self) -> None:
        x = self._pick("f", (2, 3, 4))
        axis, step = self._const(np.array([self._int(self._rank(x))])), self._int(2) + 1
        ends = [self._const(np.array([number])) for number in (self._int(2), 99, step)]
        self._add("Slice", f"{x} {ends[0]} {ends[1]} {axis} {ends[2]}")

    def _op_softmax(self) -> None:
        self._add("Softmax", (x := self._pick("f", (2, 3, 4))), axis=self._int(self._rank(x)))

    def _op_mean(self) -> None:
        x = self._pick("f", (2, 3, 4), filled=True)
        axes = self._const(self._random.permutation(self._rank(x))[: 1 + self._int(2)])
        self._add("ReduceMean", f"{x} {axes}", keepdims=self._int(2))

    def _op_resize(self) -> None:
        linear = self._int(2)
        scales = self._const(np.array([1, 1, 2, 1 + self._int(3)], "f4"))
        ways = ("half_pixel", "align_corners", "asymmetric")
        given = {"coordinate_transformation_mode": ways[self._int(3)]}
        if not linear:
            given = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        self._add("Resize", f"{self._map()}  {scales}", mode=("nearest", "linear")[linear], **given)


# In the network of seed 10 is a window of MaxPool that leanconv does not take, as opset 22 says.
@pytest.mark.parametrize("seed", [seed for seed in range(40) if seed != 10])
def test_random_networks_answer_as_onnxruntime_does(tmp_path: Path, seed: int) -> None:
    network = LitertNetwork(2 * seed, steps=9)
    file = saved(tmp_path, network.proto)
    feed, wanted = network.feeds[0], list(network.expected[0].values())
    found = answers(file, feed)
    assert difference(found, wanted) < CLOSE


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("MatMul x w p, Relu p r, Add r b y", "y"),  # the summand comes behind the bound
        ("MatMul x w p, Transpose p t, Add t b y", "y"),  # it lies along the other axis
        ("MatMul x w p, Transpose p t, Relu t y, Add p b z", "y z"),  # p itself keeps its numbers
        ("MatMul x w p, Add p b y", "y p"),
        ("MatMul x w p, Relu p y", "p y"),
    ],
)
def test_operators_take_in_only_what_follows_them(tmp_path: Path, nodes: str, outputs: str) -> None:
    random = np.random.default_rng(0)
    held = {"w": random.integers(-3, 4, (3, 3)), "b": random.integers(-3, 4, 3)}
    made = [each.split() for each in nodes.split(", ")]
    proto = model(
        [node(op, " ".join(read), name) for op, *read, name in made],
        {"x": (3, 3)},
        outputs.split(),
        {name: array.astype("f4") for name, array in held.items()},
    )
    file, feed = saved(tmp_path, proto), {"x": random.integers(-3, 4, (3, 3)).astype("f4")}
    for found, wanted in zip(answers(file, feed), expected(file, feed), strict=True):
        assert np.array_equal(found, wanted)


def test_xnnpack_computes_all_of_a_network(tmp_path: Path) -> None:
    """Padding, depthwise layers, attention to channels, and the classifier."""
    random = np.random.default_rng(0)
    shapes = {"a": (8, 3, 3, 3), "b": (8, 1, 3, 3), "c": (8, 8, 1, 1), "d": (8, 5)}
    held = {name: random.standard_normal(shape, dtype="f4") for name, shape in shapes.items()}
    proto = model(
        [
            node("Conv", "x a", "1", strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Relu", "1", "2"),
            node("MaxPool", "2", "3", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Conv", "3 b", "4", group=8, pads=[1, 1, 1, 1]),
            node("HardSwish", "4", "5"),
            node("GlobalAveragePool", "5", "6"),
            node("Conv", "6 c", "7"),
            node("HardSigmoid", "7", "8"),
            node("Mul", "5 8", "9"),
            node("GlobalAveragePool", "9", "10"),
            node("Flatten", "10", "11"),
            node("Gemm", "11 d", "12"),
            node("Softmax", "12", "y"),
        ],
        {"x": (2, 3, 32, 32)},
        ["y"],
        held,
    )
    file, feed = saved(tmp_path, proto), {"x": random.standard_normal((2, 3, 32, 32), dtype="f4")}
    assert difference(answers(file, feed), expected(file, feed)) < CLOSE
    interpreter = engine_litert.Interpreter(
        model_content=tflite.convert(file, {"x": feed["x"].shape}).data
    )
    interpreter.allocate_tensors()
    kinds = [each["op_name"] for each in interpreter._get_ops_details()]
    assert kinds.count("DELEGATE") == 1


def test_the_engine_runs_in_its_process(tmp_path: Path) -> None:
    spec = ConvSpec.parse("ic3ih9iw8oc5kh3")
    (tmp_path / "layer.onnx").write_bytes(conv_model(spec, np.ones(spec.weight_shape, "f4")))
    np.savez(tmp_path / "inputs.npz", x=np.ones(spec.input_shape, "f4"))
    (engine,) = (each for each in ENGINES if each.name == "litert")
    request = {"model": str(tmp_path / "layer.onnx"), "inputs": str(tmp_path / "inputs.npz")}
    with EngineProcess(Installed(engine, sys.executable)) as process:
        assert process.ask({"do": "load", "threads": 1, **request})["version"]
        process.ask({"do": "answer", "file": str(tmp_path / "answer.npz")})
        turn = {"do": "run", "seconds": 0.0, "warmup_seconds": 0.0, "least": 3}
        assert len(process.ask(turn)["ns"]) == 3
    with np.load(tmp_path / "answer.npz") as archive:
        assert np.array_equal(archive["output_0"], np.full(spec.output_shape, 27, "f4"))


LSTM = node("LSTM", "x w r", "y", hidden_size=1)


@pytest.mark.parametrize(
    ("nodes", "shape", "constants", "said"),
    [
        ([LSTM], (1, 1, 2), {"w": np.ones((1, 4, 2)), "r": np.ones((1, 4, 1))}, "Recurrence"),
        ([node("Conv", "x w", "y")], (1, 2, 9), {"w": np.ones((1, 2, 3))}, "1 spatial axes"),
        ([node("Gemm", "x x", "y")], (3, 3), {}, "weights that are computed"),
        (
            [node("MaxPool", "x", "y", kernel_shape=[2, 2], dilations=[2, 2])],
            (1, 1, 5, 5),
            {},
            "(MaxPool) has dilations",
        ),
        (
            [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[2, 2, 2, 2])],
            (1, 1, 5, 5),
            {},
            "windows partly outside",
        ),
        ([node("Pow", "x e", "y")], (2, 3), {"e": np.array(3.0)}, "an exponent other than 2"),
        (
            [node("ConvTranspose", "x w", "y", strides=[2, 2], output_padding=[1, 1])],
            (1, 1, 3, 3),
            {"w": np.ones((1, 1, 2, 2))},
            "(ConvTranspose) has other padding",
        ),
        ([node("Cast", "x", "y", to=onnx.TensorProto.INT32)], (2, 3), {}, "Cast"),
    ],
)
def test_what_is_not_written_is_refused_by_name(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: dict[str, np.ndarray],
    said: str,
) -> None:
    held = {name: np.asarray(array, "f4") for name, array in constants.items()}
    file = saved(tmp_path, model(nodes, {"x": shape}, ["y"], held))
    with pytest.raises(UnsupportedError) as caught:
        tflite.convert(file, {"x": shape})
    assert said in str(caught.value)
    assert "by other engines" in str(caught.value)
