"""Networks most of whose weights are 0, for tests: chains, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from support.control_flow import node
from support.grown_networks import UnfitError
from support.onnx_models import Array, model
from support.random_networks import RandomNetwork

_SHARES = (0.3, 0.5, 0.8, 0.9, 0.99, 1.0)
_LAYERS = 0.85  # of the operations, those below
_CHANNELS = (1, 4, 8, 16, 24, 33)
_OPSETS = (9, 11, 13, 17, 20)


def chain(
    shares: Sequence[float],
    seed: int = 0,
    channels: int = 64,
    k: int = 1,
    batch: int | str = 1,
    sizes: tuple[int | str, int | str] = (28, 28),
) -> bytes:
    """Convolutions one after the other, of the weights of which shares are 0."""
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    value = "x"
    for number, share in enumerate(shares):
        w = random.standard_normal((channels, channels, k, k)).astype("f4")
        w.reshape(-1)[random.permutation(w.size)[: round(share * w.size)]] = 0
        constants[f"w{number}"] = w
        conv = onnx.helper.make_node(
            "Conv", [value, f"w{number}"], [f"c{number}"], f"conv{number}", pads=[k // 2] * 4
        )
        value = f"y{number}"
        nodes += [conv, onnx.helper.make_node("Relu", [f"c{number}"], [value])]
    shape = (batch, channels, *sizes)
    return model(nodes, {"x": shape}, [value], constants).SerializeToString()


def mobile(share: float, together: int = 1, batch: int | str = 1, size: int | str = 28) -> bytes:
    """Two inverted residuals: a share of their 1x1 weights is 0, of some neighbours together."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {"low": np.float32(0), "high": np.float32(6)}
    value = "x"
    for number in range(6):
        k, group = ((1, 1), (3, 384), (1, 1))[number % 3]
        inputs, outputs = ((64, 384), (384, 384), (384, 64))[number % 3]
        w = random.standard_normal((outputs, inputs // group, k, k)).astype("f4") / 8
        if k == 1:
            drawn = random.random((outputs // together, inputs, 1, 1))
            w[np.repeat(drawn, together, axis=0) < share] = 0
        constants[f"w{number}"] = w
        given = {"pads": [k // 2] * 4, "group": group}
        conv = onnx.helper.make_node(
            "Conv", [value, f"w{number}"], [f"c{number}"], f"conv{number}", **given
        )
        if number % 3 < 2:
            clipped = [f"c{number}", "low", "high"]
            after = onnx.helper.make_node("Clip", clipped, [f"y{number}"])
        else:
            before = f"y{number - 3}" if number > 3 else "x"
            after = onnx.helper.make_node("Add", [f"c{number}", before], [f"y{number}"])
        value = f"y{number}"
        nodes += [conv, after]
    shape = (batch, 64, size, size)
    return model(nodes, {"x": shape}, [value], constants).SerializeToString()


class PrunedNetwork(RandomNetwork):
    """A random network of pruned convolutions, some with rows, columns or blocks of zeros.

    Their channels are so many that transforms may compute them: no result of them is exact. Files
    are of old and of new opsets, and few of their values are outputs.
    """

    def __init__(self, seed: int, steps: int = 8) -> None:
        self.opset = _OPSETS[seed // 2 % len(_OPSETS)]
        super().__init__(seed, steps)

    def _emit(self, nodes: Sequence[onnx.NodeProto], only: str = "", captured: str = "") -> str:
        if self.opset < 17 and any(each.op_type == "LayerNormalization" for each in nodes):
            raise UnfitError  # which ONNX Runtime takes in spite of that
        out = super()._emit(nodes, only, captured)
        if any(each.op_type in ("Conv", "ConvTranspose") for each in nodes):
            self._rounded.update([only] if only else [n for each in nodes for n in each.output])
        return out

    def _step(self, makers: Sequence[Callable[[], Any]]) -> None:
        layers = [make for make in makers if make.__name__.startswith("_op_layer")]
        layers += [self._op_block, self._op_summed_convs]
        super()._step(layers if self._random.random() < _LAYERS else makers)

    def _ends(self, names: list[str]) -> list[str]:
        """The last value and, perhaps, some others."""
        others = {self._one_of(names) for _ in range(self._int(3))}
        return [name for name in names if name in others or name == names[-1]]

    def _clipped(self, x: str) -> str:
        return super()._clipped(x) if self.opset > 10 else self._add("Clip", x, min=-6.0, max=6.0)

    def _weights(self, *shape: int) -> str:
        """Numbers of which a share is 0, those of four neighbours together, rows or columns."""
        if len(shape) < 3 or max(shape[2:]) == 1 == shape[1]:
            return super()._weights(*shape)
        drawn = self._random.random(shape)
        if shape[0] % 4 == 0 and self._int(3) == 0:
            drawn = np.repeat(drawn[::4], 4, axis=0)
        w = self._random.choice([-2, -1, 1], shape).astype("f4")
        w[drawn < self._one_of(_SHARES)] = 0
        if self._int(2):
            w[self._random.random(len(w)) < 0.4] = 0
        if self._int(3) == 0:
            w[:, self._random.random(w.shape[1]) < 0.3] = 0
        return self._const(w)

    # -- parts -------------------------------------------------------------------------------
    def _activated(self, x: str) -> str:
        """What an activation makes of a value; or the value."""
        way = self._int(9)
        if way < 3:
            return self._add("Relu", x)
        if way == 3:
            return self._clipped(x)
        if way == 4:
            slope = self._weights(self._shape(x)[1], *[1] * (self._rank(x) - 2))
            return self._add("PRelu", f"{x} {slope}")
        if way == 5:
            return self._smoothly(self._one_of("Sigmoid Tanh HardSigmoid Elu LeakyRelu"), x)
        if way == 6:
            return self._add("Mul", f"{x} {self._smoothly('Sigmoid', x)}")
        return self._normed(x) if way == 7 else x

    def _normed(self, x: str) -> str:
        """A batch norm, or what it is made of, of which some factors are 0."""
        channels, axes = self._shape(x)[1], self._rank(x) - 2
        scale = self._random.choice([-1, 0, 0.5, 1], channels).astype("f4")
        if self._int(2):
            shift, mean = self._weights(channels), self._weights(channels)
            spread = self._const(self._random.uniform(0.5, 2, channels).astype("f4"))
            parts = f"{x} {self._const(scale)} {shift} {mean} {spread}"
            return self._smoothly("BatchNormalization", parts)
        y = self._add("Mul", f"{x} {self._const(scale.reshape(-1, *[1] * axes))}")
        return self._add("Add", f"{y} {self._weights(1, channels, *[1] * axes)}")

    def _convolved(
        self, x: str, outputs: int = 0, side: int = 0, group: int = 1, dense: bool = False
    ) -> str:
        """A convolution of pruned weights that keeps sizes, unless it does not pad."""
        channels, axes = self._shape(x)[1], self._rank(x) - 2
        outputs, side = outputs or self._one_of(_CHANNELS), side or self._one_of((1, 1, 3))
        w = self._weights(outputs, channels // group, *[side] * axes)
        bias = f" {self._weights(outputs)}" if self._int(3) else ""
        pads = [side // 2 if dense or self._int(4) else 0] * 2 * axes
        return self._add("Conv", f"{x} {w}{bias}", group=group, pads=pads)

    def _is_whole(self, x: str, most: int = 120) -> bool:
        """Whether a value has whole numbers that 8 bits hold."""
        arrays = self._values[x]
        return all((a == np.round(a)).all() and np.abs(a).max(initial=0) <= most for a in arrays)

    # -- layers ------------------------------------------------------------------------------
    def _op_layer(self) -> None:
        """A convolution as networks have them."""
        x, channels, axes = self._spatial((3, 4, 4, 4, 5))
        group = self._one_of([g for g in (1, 1, 1, 2, 4) if channels % g == 0])
        outputs, side = group * self._one_of(_CHANNELS), self._one_of((1, 1, 3))
        w = self._weights(outputs, channels // group, *[side] * axes)
        given = {"group": group, "pads": [side // 2] * 2 * axes, "strides": self._each(axes, 1, 2)}
        bias = f" {self._weights(outputs)}" if self._int(2) else ""
        self._activated(self._add("Conv", f"{x} {w}{bias}", **given))

    def _op_layer_pair(self) -> None:
        """Two convolutions of the same weights, or one after the other."""
        x, channels, axes = self._spatial((4,))
        y = self._activated(self._convolved(x, channels))
        if self._int(2):
            y = self._activated(self._convolved(y))
        else:
            w = self._weights(channels, channels, *[1] * axes)
            y = self._activated(self._add("Conv", f"{y} {w}"))
            y = self._activated(self._add("Conv", f"{y} {w}"))
        self._convolved(y)

    def _op_layer_depthwise(self) -> None:
        """A depthwise convolution between two others, perhaps with squeeze-and-excite."""
        x, channels, _ = self._spatial((4,))
        inner = self._one_of(_CHANNELS)
        y = self._activated(self._convolved(x, inner, 1))
        y = self._activated(self._convolved(y, inner * self._one_of((1, 1, 2)), 3, inner))
        if self._int(2):
            count = self._shape(y)[1]
            share = self._convolved(self._smoothly("GlobalAveragePool", y), 4, 1)
            share = self._convolved(self._add("Relu", share), count, 1)
            y = self._add("Mul", f"{y} {self._smoothly('Sigmoid', share)}")
        y = self._convolved(y, channels, 1, dense=True)
        if self._shape(y) == self._shape(x) and self._int(2):
            y = self._add("Add", f"{y} {x}")
        self._activated(y)

    def _op_layer_residual(self) -> None:
        """A bottleneck: 1x1, 3x3, 1x1 and its input, or what is made of that."""
        x, channels, _ = self._spatial((4,))
        inner = self._one_of(_CHANNELS)
        if self._int(2):
            x = self._activated(self._convolved(x, channels := self._one_of(_CHANNELS)))
        y = self._activated(self._convolved(x, inner, 1))
        y = self._activated(self._convolved(y, inner, 3, dense=True))
        y = self._convolved(y, channels, 1)
        y = self._activated(y) if self._int(3) == 0 else y
        names = (y, x) if self._int(2) else (x, y)
        self._activated(self._add(self._one_of("Add Add Add Sub Mul Max"), " ".join(names)))

    def _op_layer_concat(self) -> None:
        """Convolutions of one map side by side; all of that, or parts, are read."""
        x, _, _ = self._spatial((4,))
        parts = [x] if self._int(2) else []
        parts += [self._activated(self._convolved(x, 0, side, dense=True)) for side in (1, 3)]
        if self._int(4) == 0:
            parts.append(parts[-1])
        y = self._activated(self._add("Concat", " ".join(parts), axis=1))
        if self._int(2):
            self._convolved(y)
        if self._int(2) and self.opset > 9:
            first = self._int(self._shape(y)[1])
            numbers = [[first], [first + 1 + self._int(9)], [1]]
            part = self._add("Slice", " ".join([y, *(self._const(np.array(n)) for n in numbers)]))
            self._convolved(self._activated(part))

    def _op_layer_split(self) -> None:
        """Parts of channels, of which some are computed and joined again, as in YOLO."""
        x, _, _ = self._spatial((4,))
        y = self._activated(self._convolved(x, 2 * self._one_of(_CHANNELS)))
        one, two = self._new(), self._new()
        given = {"num_outputs": 2} if self.opset > 17 else {}
        self._emit([node("Split", y, f"{one} {two}", axis=1, **given)])
        made = self._activated(self._convolved(two, self._shape(one)[1], dense=True))
        if self._int(2):
            made = self._add("Add", f"{made} {one}")
        self._convolved(self._add("Concat", f"{one} {made} {two}", axis=1))

    def _op_layer_window(self) -> None:
        """Pools, Pad and Resize between two convolutions."""
        x, _, _ = self._spatial((4,))
        y, way = self._activated(self._convolved(x)), self._int(5)
        if way < 2:
            given = self._pooled(y, 3)
            if way and self.opset > 9:
                y = self._add("MaxPool", y, ceil_mode=self._int(2), **given)
            elif way:
                y = self._add("MaxPool", y, **given)
            else:
                y = self._smoothly("AveragePool", y, count_include_pad=self._int(2), **given)
        elif way == 2:
            mode, pads = self._one_of("constant edge reflect"), [0, 0, 1, 2, 0, 0, 1, 0]
            if self.opset < 11:
                y = self._add("Pad", y, pads=pads, mode=mode, value=float(self._int(2)))
            else:
                value = self._const(np.float32(self._int(3) - 1))
                y = self._add("Pad", f"{y} {self._const(np.array(pads))} {value}", mode=mode)
        else:
            factors = self._const(np.array([1, 1, 2, self._one_of((1, 2, 3))], "f4"))
            mode = self._one_of("nearest linear")
            if self.opset < 11:
                op = "Upsample" if self.opset < 10 else "Resize"
                y = self._smoothly(op, f"{y} {factors}", mode=mode)
            else:
                where = "asymmetric" if mode == "nearest" else "half_pixel"
                given = {"coordinate_transformation_mode": where, "nearest_mode": "floor"}
                region = self._const(np.zeros(0, "f4"))
                y = self._smoothly("Resize", f"{y} {region} {factors}", mode=mode, **given)
        self._activated(self._convolved(y))

    def _op_layer_transposed(self) -> None:
        """A transposed convolution between two others."""
        x, _, axes = self._spatial((3, 4))
        y = self._activated(self._convolved(x))
        channels = self._shape(y)[1]
        group = self._one_of([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
        outputs = self._one_of((1, 4, 5))
        w = self._weights(channels, outputs, *self._each(axes, 1, 3))
        bias = f" {self._weights(outputs * group)}" if self._int(2) else ""
        given = {"group": group, "strides": self._each(axes, 1, 2)}
        given |= {"pads": self._each(2 * axes, 0, 1)}
        y = self._activated(self._add("ConvTranspose", f"{y} {w}{bias}", **given))
        self._convolved(y)

    def _op_layer_dense(self) -> None:
        """Dense layers behind a map or the means of its channels."""
        x, _, _ = self._spatial((4,))
        y = self._activated(self._convolved(x))
        if self._int(2):
            y = self._smoothly("GlobalAveragePool", y)
        y = self._add("Flatten", y)
        for _ in range(2):
            w = self._random.integers(-1, 2, (self._shape(y)[1], 7)).astype("f4")
            w[:, self._random.random(7) < 0.3] = 0
            w[self._random.random(len(w)) < 0.3] = 0
            if self._int(2):
                y = self._add("Gemm", f"{y} {self._const(w)} {self._weights(7)}", alpha=0.5)
            else:
                y = self._add("MatMul", f"{y} {self._const(w)}")
            y = self._clipped(y)

    def _op_layer_quantised(self) -> None:
        """A convolution of codes, of pruned weights."""
        x, channels, axes = self._spatial((4,))
        if self.opset < 11 or not self._is_whole(x):
            raise UnfitError
        one, zero = self._const(np.float32(1)), self._const(np.int8(self._int(3)))
        shape = (self._one_of(_CHANNELS), channels, *[self._one_of((1, 3))] * axes)
        w = self._held[self._weights(*shape)].astype("i1")
        codes = self._add("QuantizeLinear", f"{x} {one} {zero}")
        held = self._add("DequantizeLinear", f"{self._const(w)} {one} {self._const(np.int8(0))}")
        y = self._add("DequantizeLinear", f"{codes} {one} {zero}")
        y = self._add("Conv", f"{y} {held}", pads=[w.shape[2] // 2] * 2 * axes)
        y = self._add("Relu", y) if self._int(2) else y
        y = self._add("QuantizeLinear", f"{y} {one} {zero}")
        y = self._add("DequantizeLinear", f"{y} {one} {zero}")
        self._activated(self._convolved(y))

    def _op_layer_sum(self) -> None:
        """A sum of convolutions of one map, and of batch norms of them and of it, as trained."""
        x, channels, axes = self._spatial((3, 4, 4))
        same = bool(self._int(2))
        group = self._one_of([g for g in (1, 1, channels) if channels % g == 0])
        outputs = channels if same else group * self._one_of((1, 4, 8))
        strides = [1] * axes if same else self._each(axes, 1, 2)
        total = self._normed(x) if same and self._int(2) else ""
        for _ in range(2 + self._int(3)):
            dilation, halves = 1 + (self._int(5) == 0), self._each(axes, 0, 2)
            w = self._weights(outputs, channels // group, *[2 * half + 1 for half in halves])
            bias = f" {self._weights(outputs)}" if self._int(2) else ""
            given = {"group": group, "strides": strides, "dilations": [dilation] * axes}
            pads = [half * dilation for half in halves] * 2
            y = self._add("Conv", f"{x} {w}{bias}", pads=pads, **given)
            if self._int(2):
                y = self._normed(y)
            if total:
                names = (total, y) if self._int(2) else (y, total)
                total = self._add(self._one_of("Add Add Add Add Sub"), " ".join(names))
            else:
                total = y
        self._activated(total)
