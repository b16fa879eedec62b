"""Random networks of operations of all families, for tests.

Some values are exact: whole numbers in any arithmetic. The rest follow from divisions and functions
and differ by rounding; only what is continuous reads these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from support.control_flow import branch, graph, node
from support.grown_networks import GrownNetwork, UnfitError
from support.onnx_models import Array

_LARGEST = 200.0  # of values that are not exact, so that errors stay small beside them
# Functions of one operand by whether whole numbers stay whole; others read |x| + 1.
_WHOLE = "Relu Neg Abs Sign Identity Floor Ceil Round"
_SMOOTH = (
    "Sigmoid Tanh Elu Selu Celu Softplus Softsign HardSigmoid HardSwish Gelu Mish Erf Sin Cos Atan"
    " LeakyRelu LogSoftmax Softmax"
)
_SMOOTH_EACH = _SMOOTH.replace(" LogSoftmax Softmax", "")
_POSITIVE = "Sqrt Log Reciprocal"
_REDUCED = "ReduceMean ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare"
_FLOATS = (TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


class RandomNetwork(GrownNetwork):
    """A random network of convolutions and everything that stands round them.

    Attributes:
        smooth: the outputs that differ by rounding; others are whole numbers.
    """

    opset, ir_version = 20, 9

    def __init__(self, seed: int, steps: int = 10) -> None:
        self._rounded: set[str] = set()
        super().__init__(seed, steps)
        self.smooth = self._rounded & set(self.expected[0])

    # -- parts -------------------------------------------------------------------------------
    def _one_of(self, names: str | Sequence[Any]) -> Any:
        found = names.split() if isinstance(names, str) else names
        return found[self._int(len(found))]

    def _exact(self, kinds: str = "f", ranks: Sequence[int] = (1, 2, 3, 4, 5)) -> str:
        """A value of whole numbers."""
        for _ in range(10):
            name = self._pick(kinds, ranks, filled=True)
            if name not in self._rounded:
                return name
        raise UnfitError

    def _some(self, ranks: Sequence[int] = (1, 2, 3, 4, 5)) -> str:
        """A value of floats."""
        return self._pick("f", ranks, filled=True)

    def _shape(self, name: str) -> tuple[int, ...]:
        """The extents of a value for the first feed."""
        return self._values[name][0].shape

    def _weights(self, *shape: int) -> str:
        return self._const(self._random.integers(-1, 2, shape).astype("f4"))

    def _emit(self, nodes: Sequence[onnx.NodeProto], only: str = "", captured: str = "") -> str:
        """The same; what reads a value that is not exact is none, either."""
        out = super()._emit(nodes, only, captured)
        made = [only] if only else [name for each in nodes for name in each.output]
        read = {name for each in nodes for name in each.input} | set(captured.split())
        if read & self._rounded:
            self._mark(made)
        return out

    def _mark(self, names: Sequence[str]) -> None:
        """Say that values differ by rounding.

        Raises:
            UnfitError: they are too large.
        """
        floats = [name for name in names if self._values[name][0].dtype.kind == "f"]
        for name in floats:
            if any(np.abs(array).max(initial=0) > _LARGEST for array in self._values[name]):
                raise UnfitError
        self._rounded.update(floats)

    def _smoothly(self, op: str, inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """An operation whose results are not whole."""
        names = [self._new() for _ in range(outputs)]
        self._emit([node(op, inputs, " ".join(names), **attributes)])
        self._mark(names)
        return names[0]

    def _clipped(self, x: str) -> str:
        return self._add("Clip", f"{x} {self._const(np.float32(-6))} {self._const(np.float32(6))}")

    def _spatial(self, ranks: Sequence[int] = (3, 4, 5)) -> tuple[str, int, int]:
        """A map, how many channels it has and how many axes behind them."""
        x = self._some(ranks)
        return x, self._shape(x)[1], self._rank(x) - 2

    def _pooled(self, x: str, longest: int) -> dict[str, Any]:
        """Kernel, padding and strides of a pool that fits the map.

        Raises:
            UnfitError: the map is smaller than the kernel.
        """
        axes = self._rank(x) - 2
        kernel = self._each(axes, 1, longest)
        pads = [self._int(k) for k in kernel * 2]
        for array in self._values[x]:
            sizes = zip(array.shape[2:], kernel, pads[:axes], pads[axes:], strict=True)
            if any(extent + before + after < k for extent, k, before, after in sizes):
                raise UnfitError
        return {"kernel_shape": kernel, "pads": pads, "strides": self._each(axes, 1, 3)}

    def _each(self, count: int, least: int, most: int) -> list[int]:
        return [least + self._int(most - least + 1) for _ in range(count)]

    # -- layers ------------------------------------------------------------------------------
    def _op_conv(self) -> None:
        x, channels, axes = self._spatial()
        group = self._one_of([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
        outputs, kernel = group * self._one_of((1, 2, 5, 8, 17)), self._each(axes, 1, 4)
        w, bias = self._weights(outputs, channels // group, *kernel), self._weights(outputs)
        given = {
            "group": group,
            "pads": self._each(2 * axes, 0, 3),
            "strides": self._each(axes, 1, 3),
            "dilations": self._each(axes, 1, 2),
        }
        y = self._add("Conv", f"{x} {w}" + (f" {bias}" if self._int(2) else ""), **given)
        self._clipped(y)

    def _op_conv_transpose(self) -> None:
        x, channels, axes = self._spatial()
        group = self._one_of([g for g in (1, 1, 2, channels) if channels % g == 0])
        strides = self._each(axes, 1, 3)
        w = self._weights(channels, self._one_of((1, 2, 5)), *self._each(axes, 1, 4))
        given = {"group": group, "strides": strides, "pads": self._each(2 * axes, 0, 1)}
        self._clipped(self._add("ConvTranspose", f"{x} {w}", **given))

    def _op_convs_by_data(self) -> None:
        """A convolution, or a transposed one, whose weights and bias each run computes."""
        x, channels, axes = self._spatial((3, 4))
        group = self._one_of([g for g in (1, 1, 2, channels) if channels % g == 0])
        own, kernel = self._one_of((1, 2, 5, 8, 17)), self._each(axes, 1, 4)
        given = {"group": group, "strides": self._each(axes, 1, 3)}
        up = bool(self._int(2))
        shape = (channels, own) if up else (group * own, channels // group)
        largest = self._add("ReduceMax", x, keepdims=0)
        nothing = self._add("Mul", f"{largest} {self._const(np.float32(0))}")
        w = self._add("Add", f"{self._weights(*shape, *kernel)} {nothing}")
        read = f"{x} {w}"
        if self._int(2):
            read += " " + self._add("Add", f"{self._weights(group * own)} {nothing}")
        most = 1 if up else 3
        given |= {"pads": self._each(2 * axes, 0, most), "dilations": self._each(axes, 1, 2)}
        self._clipped(self._add("ConvTranspose" if up else "Conv", read, **given))

    def _op_block(self) -> None:
        """An inverted residual: 1x1, depthwise, 1x1, the input added."""
        x, channels, axes = self._spatial((4,))
        wide = channels * self._one_of((2, 6))
        parts = [(wide, channels, 1, 1, 0), (wide, 1, 3, wide, 1), (channels, wide, 1, 1, 0)]
        y = x
        for outputs, inputs, side, group, pad in parts:
            w = self._weights(outputs, inputs, *[side] * axes)
            y = self._add("Conv", f"{y} {w}", group=group, pads=[pad] * 2 * axes)
            y = self._clipped(y)
        self._add("Add", f"{y} {x}")

    def _op_summed_convs(self) -> None:
        """A sum of convolutions of one input, and of it itself, times numbers: RepVGG's blocks."""
        x, channels, axes = self._spatial((3, 4))
        nodes: list[onnx.NodeProto] = []

        def add(op: str, inputs: str, **attributes: Any) -> str:
            nodes.append(node(op, inputs, self._new(), **attributes))
            return str(nodes[-1].output[0])

        group = self._one_of((1, channels)) if channels <= 8 else channels  # no transforms: exact
        total = x if self._int(2) else ""
        for half in self._one_of(((1, 0), (0, 0), (1, 1, 0), (2, 1))):
            w = self._weights(channels, channels // group, *[2 * half + 1] * axes)
            y = add("Conv", f"{x} {w}", group=group, pads=[half] * 2 * axes)
            if self._int(2):
                y = add("Mul", f"{y} {self._weights(channels, *[1] * axes)}")
            total = add("Add", f"{total} {y}") if total else y
        self._clipped(self._emit(nodes, total))

    def _op_matmul(self) -> None:
        x = self._some((2, 3, 4))
        self._clipped(self._add("MatMul", f"{x} {self._weights(self._shape(x)[-1], 5)}"))

    def _op_gemm(self) -> None:
        x, turned = self._some((2,)), self._int(2)
        inner = self._shape(x)[1]
        w = self._weights(*((7, inner) if turned else (inner, 7)))
        self._clipped(self._add("Gemm", f"{x} {w} {self._weights(7)}", transB=turned, alpha=2.0))

    def _op_einsum(self) -> None:
        x = self._some((3,))
        self._clipped(self._add("Einsum", f"{x} {x}", equation="bij,bkj->bik"))

    def _op_attention(self) -> None:
        x = self._some((3, 4))
        turned = [*range(self._rank(x) - 2), self._rank(x) - 1, self._rank(x) - 2]
        scores = self._add("MatMul", f"{x} {self._add('Transpose', x, perm=turned)}")
        share = self._smoothly("Softmax", scores, axis=-1)
        self._smoothly("MatMul", f"{share} {x}")

    def _op_recurrent(self) -> None:
        x, op = self._some((3,)), self._one_of("LSTM GRU RNN")
        gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], self._one_of((1, 3, 8))
        direction = self._one_of("forward reverse bidirectional")
        count = 1 + (direction == "bidirectional")
        w = self._weights(count, gates * hidden, self._shape(x)[2])
        r, b = (
            self._weights(count, gates * hidden, hidden),
            self._weights(count, 2 * gates * hidden),
        )
        given = {"direction": direction, "hidden_size": hidden}
        self._smoothly(op, f"{x} {w} {r} {b}", 2 + (op == "LSTM"), **given)

    # -- pools and normalisations ------------------------------------------------------------
    def _op_max_pool(self) -> None:
        x = self._some((3, 4, 5))
        self._add("MaxPool", x, ceil_mode=self._int(2), **self._pooled(x, 3))

    def _op_average_pool(self) -> None:
        x = self._some((3, 4, 5))
        given = self._pooled(x, 4)
        self._smoothly("AveragePool", x, count_include_pad=self._int(2), **given)

    def _op_global_pool(self) -> None:
        x = self._some((3, 4, 5))
        self._smoothly(self._one_of("GlobalAveragePool GlobalMaxPool"), x)

    def _op_normalised(self) -> None:
        x, channels, _ = self._spatial((3, 4))
        scale, shift = self._weights(channels), self._weights(channels)
        spread = self._const(self._random.uniform(0.5, 2, channels).astype("f4"))
        way = self._int(4)
        if way == 0:
            self._smoothly("BatchNormalization", f"{x} {scale} {shift} {shift} {spread}")
        elif way == 1:
            self._smoothly("InstanceNormalization", f"{x} {scale} {shift}", epsilon=0.1)
        elif way == 2:
            last = self._const(np.ones(self._shape(x)[-1], "f4"))
            self._smoothly("LayerNormalization", f"{x} {last}", axis=-1, epsilon=0.1)
        else:
            self._smoothly("LRN", x, size=self._one_of((1, 3, 5)))

    def _op_resized(self) -> None:
        x = self._some((4,))
        scales = self._random.choice([0.5, 1, 1.5, 2, 3], 2)
        factors = self._const(np.array([1, 1, *scales], "f4"))
        mode = self._one_of("nearest linear cubic")
        where = self._one_of("half_pixel asymmetric align_corners pytorch_half_pixel")
        if mode == "nearest":
            where = "asymmetric"
            self._exact("f", (4,))
        given = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
        y = self._smoothly("Resize", f"{x} - {factors}", **given)
        if not all(array.size for array in self._values[y]):  # which leanconv refuses
            raise UnfitError

    # -- element by element ------------------------------------------------------------------
    def _op_whole(self) -> None:
        self._add(self._one_of(_WHOLE), self._exact())

    def _op_function(self) -> None:
        self._smoothly(self._one_of(_SMOOTH), self._some())

    def _op_positive(self) -> None:
        one = self._const(np.float32(1))
        above = self._add("Add", f"{self._add('Abs', self._some())} {one}")
        self._smoothly(self._one_of(_POSITIVE), above)

    def _op_pair(self) -> None:
        x = self._some()
        others = (x, self._pick("f"), self._weights(), self._weights(*self._shape(x)[-1:]))
        self._add(self._one_of("Add Sub Mul Max Min"), f"{x} {self._one_of(others)}")

    def _op_chain(self) -> None:
        """Functions and operands one after the other, of which only the last result is read."""
        x = self._some()
        last = self._weights(*self._shape(x)[-1:])
        nodes, names = [], [x]
        for _ in range(2 + self._int(6)):
            first, out = self._one_of(names[-2:]), self._new()
            if self._int(2):
                nodes.append(node(self._one_of(_SMOOTH_EACH), first, out))
            else:
                other = self._one_of((x, last, self._one_of(names)))
                nodes.append(node(self._one_of("Add Sub Mul Max Min"), f"{first} {other}", out))
            names.append(out)
        self._emit(nodes, names[-1])
        self._mark(names[-1:])

    def _op_scaled(self) -> None:
        """As normalisation and squeeze-and-excitation do: a number for each channel."""
        x, channels, axes = self._spatial()
        per_channel = self._weights(channels, *[1] * axes)
        y = self._add("Mul", f"{x} {per_channel}")
        self._add(self._one_of("Add Sub"), f"{y} {self._weights(channels, *[1] * axes)}")

    def _op_excited(self) -> None:
        x, channels, _ = self._spatial((4,))
        y = self._smoothly("GlobalAveragePool", x)
        y = self._add("Relu", self._add("Conv", f"{y} {self._weights(4, channels, 1, 1)}"))
        y = self._smoothly(
            self._one_of("Sigmoid HardSigmoid"),
            self._add("Conv", f"{y} {self._weights(channels, 4, 1, 1)}"),
        )
        self._add("Mul", f"{x} {y}")

    def _op_chosen(self) -> None:
        x = self._exact()
        flags = self._add(self._one_of("Greater Less Equal"), f"{x} {self._const(np.float32(0))}")
        if self._int(2):
            flags = self._add("Not", flags)
        self._add("Where", f"{flags} {x} {self._add('Neg', x)}")

    def _op_cast(self) -> None:
        x, kind = self._exact(), self._one_of((*_FLOATS, *_INTEGERS))
        if kind == TensorProto.INT8 and any(
            np.abs(a).max(initial=0) > 100 for a in self._values[x]
        ):
            raise UnfitError
        if any(np.abs(a).max(initial=0) > 256 for a in self._values[x]):  # of bfloat16
            raise UnfitError
        out = self._new()
        there = self._new()
        back = node("Cast", there, out, to=TensorProto.FLOAT)
        self._emit([node("Cast", x, there, to=kind), back], out)

    # -- moved -------------------------------------------------------------------------------
    def _op_transpose(self) -> None:
        x = self._pick("fib", (2, 3, 4, 5))
        self._add("Transpose", x, perm=self._random.permutation(self._rank(x)).tolist())

    def _op_reshape(self) -> None:
        shape = self._one_of(([1, 3, -1], [0, -1], [-1], [1, 1, 3, -1], [2, -1, 1, 3]))
        self._add("Reshape", f"{self._pick()} {self._const(np.array(shape))}")

    def _op_joined(self) -> None:
        x = self._some()
        axis = self._axis(x)
        others = [x, self._add("Neg", x), self._pick("f", (self._rank(x),))]
        self._add(
            "Concat", " ".join(self._one_of(others) for _ in range(1 + self._int(3))), axis=axis
        )

    def _op_parts(self) -> None:
        x = self._some()
        axis = self._int(self._rank(x))
        self._add("Split", x, 2, axis=axis, num_outputs=2)

    def _op_sliced(self) -> None:
        x = self._pick("fi", (1, 2, 3, 4))
        axes = self._random.permutation(self._rank(x))[:2]
        count = len(axes)
        numbers = [
            self._random.integers(-3, 3, count),
            self._random.choice([-9, 1, 2, 5, 99], count),
            axes,
            self._random.choice([1, 1, 2, -1, -2], count),
        ]
        self._add("Slice", " ".join((x, *(self._const(np.asarray(n, "i8")) for n in numbers))))

    def _op_padded(self) -> None:
        x = self._some((2, 3, 4))
        pads = self._const(self._random.integers(-1, 3, 2 * self._rank(x)))
        mode = self._one_of("constant reflect edge wrap")
        self._add("Pad", f"{x} {pads}", mode=mode)

    def _op_repeated(self) -> None:
        x = self._some((1, 2, 3, 4))
        self._add("Tile", f"{x} {self._const(self._random.integers(1, 3, self._rank(x)))}")

    def _op_blocks(self) -> None:
        x, channels, _ = self._spatial((4,))
        if channels % 4 == 0:
            self._add("DepthToSpace", x, blocksize=2, mode=self._one_of("DCR CRD"))
        else:
            self._add("SpaceToDepth", x, blocksize=2)

    def _op_triangle(self) -> None:
        self._add(
            "Trilu",
            f"{self._some((2, 3, 4))} {self._const(np.int64(self._int(3) - 1))}",
            upper=self._int(2),
        )

    def _op_gathered(self) -> None:
        x = self._some((1, 2, 3, 4))
        axis = self._int(self._rank(x))
        least = min(array.shape[axis] for array in self._values[x])
        which = self._random.integers(-least, least, self._one_of(((), (3,), (2, 2))))
        self._add("Gather", f"{x} {self._const(np.asarray(which, 'i8'))}", axis=axis)

    # -- reduced -----------------------------------------------------------------------------
    def _op_reduced(self) -> None:
        x = self._some()
        axes = self._const(self._random.permutation(self._rank(x))[: 1 + self._int(2)])
        kept = self._int(2)
        if self._int(2):
            op = self._one_of("ReduceSum ReduceMax ReduceMin")
            self._add(op, f"{x} {axes}", keepdims=kept)
        else:
            self._smoothly(self._one_of(_REDUCED), f"{x} {axes}", keepdims=kept)

    def _op_extreme(self) -> None:
        x = self._exact()
        y = self._add(self._one_of("ArgMax ArgMin"), x, axis=self._axis(x), keepdims=self._int(2))
        self._add("Cast", y, to=TensorProto.FLOAT)

    def _op_top(self) -> None:
        x = self._exact()
        axis = self._axis(x)
        most = min(array.shape[axis] for array in self._values[x])
        self._add("TopK", f"{x} {self._const(np.array([1 + self._int(most)]))}", 2, axis=axis)

    def _op_running(self) -> None:
        x = self._exact()
        axis = self._const(np.int64(self._axis(x)))
        given = {"exclusive": self._int(2), "reverse": self._int(2)}
        self._clipped(self._add("CumSum", f"{x} {axis}", **given))

    # -- graphs inside -----------------------------------------------------------------------
    def _op_steps(self) -> None:
        """A loop of few or of many iterations, whose state is a map."""
        x = self._some((2, 3, 4))
        i, on, state, doubled, out, total = (self._new("b") for _ in range(6))
        held = [self._const(np.float32(v)) for v in (0.5, 1)]
        nodes = [
            node("Mul", f"{state} {held[0]}", doubled),
            node("Add", f"{doubled} {held[1]}", out),
            node("ReduceMax", out, total, keepdims=0),
        ]
        body = graph(
            nodes,
            f"{on} {out} {total}",
            {i: "int64", on: "bool", state: "float"},
            kinds={on: "bool"},
        )
        count = self._const(np.int64(self._one_of((0, 1, 3, 40))))
        names = [self._new(), self._new()]
        self._emit([node("Loop", f"{count} - {x}", " ".join(names), body=body)])
        self._mark(names)

    def _op_branches(self) -> None:
        x = self._some()
        one, two = self._new("b"), self._new("b")
        either = branch(
            self._const(np.array(bool(self._int(2)))),
            self._new(),
            graph([node("Relu", x, one)], one),
            graph([node("Neg", x, two)], two),
        )
        self._emit([either], captured=x)


def largest_difference(found: Array, expected: Array) -> float:
    """max |found - expected|, relative to what is expected where that is above 1."""
    if not expected.size:
        return 0.0
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(found.astype("f8") - expected).max()) / scale
