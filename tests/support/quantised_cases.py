"""Single operators on codes with inputs and constants: what ONNX Runtime's quantiser may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from support.quantised_models import microsoft

F = np.float32
CODES = (np.uint8, np.int8)
Given = Mapping[str, np.ndarray]
Case = tuple[Any, Given, Mapping[str, Any]]  # a node, its inputs, its constants
OF_TWO = ("a", "as", "az", "b", "bs", "bz", "ys", "yz")
OF_ONE = ("a", "as", "az", "ys", "yz")
PRODUCT = ("a", "as", "az", "w", "ws", "wz")


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **more: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), **more)


class Draw:
    """Codes of one type, and quantisations."""

    def __init__(self, dtype: Any, seed: int = 0) -> None:
        self.dtype, self.rng = np.dtype(dtype), np.random.default_rng(seed)
        self.ends = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1

    def codes(self, *shape: int) -> np.ndarray:
        return self.rng.integers(*self.ends, shape).astype(self.dtype)

    def of(self, *names: str) -> dict[str, Any]:
        """A scale and a zero point for each name."""
        made: dict[str, Any] = {}
        for name in names:
            made[f"{name}s"] = F(self.rng.uniform(0.005, 0.05))
            made[f"{name}z"] = self.dtype.type(self.rng.integers(*self.ends))
        return made

    def weights(self, *shape: int, channels: int = 0) -> dict[str, Any]:
        """int8 weights with one scale, or one for each channel."""
        scale = self.rng.uniform(0.001, 0.01, channels or ()).astype(F)
        w = self.rng.integers(-127, 128, shape).astype(np.int8)
        return {"w": w, "ws": scale, "wz": np.zeros(channels or (), np.int8)}


def elementwise(d: Draw) -> dict[str, Case]:
    a, b = d.codes(2, 3, 4, 5), d.codes(2, 3, 4, 5)
    both, two = {"a": a, "b": b}, {**d.of("a"), **d.of("b", "y")}
    least = d.dtype.type(d.ends[0])
    found: dict[str, Case] = {}
    for op in ("QLinearAdd", "QLinearMul"):
        found[op] = (microsoft(op, OF_TWO), both, two)
        found[f"{op}-channel"] = (microsoft(op, OF_TWO), {"a": a}, {**two, "b": d.codes(3, 1, 1)})
    share = {**d.of("a"), "ys": F(1 / 256), "yz": least}
    found["QLinearSigmoid"] = (microsoft("QLinearSigmoid", OF_ONE), {"a": a}, share)
    leaky = microsoft("QLinearLeakyRelu", OF_ONE, alpha=0.1)
    found["QLinearLeakyRelu"] = (leaky, {"a": a}, d.of("a", "y"))
    names = ("ys", "yz", "a", "as", "az", "b", "bs", "bz")
    found["QLinearConcat"] = (microsoft("QLinearConcat", names, axis=1), both, two)
    same = {**two, **{f"y{part}": two[f"a{part}"] for part in "sz"}}
    found["QLinearConcat-same"] = (microsoft("QLinearConcat", names, axis=-1), both, same)
    names = ("c", "a", "as", "az", "b", "bs", "bz", "ys", "yz")
    condition = d.rng.integers(0, 2, a.shape).astype(bool)
    found["QLinearWhere"] = (microsoft("QLinearWhere", names), {"c": condition, **both}, two)
    for last in (0, 1):
        pool = microsoft(
            "QLinearAveragePool", OF_ONE, kernel_shape=[2, 3], pads=[0, 1, 0, 1], channels_last=last
        )
        found[f"QLinearAveragePool-{last}"] = (pool, {"a": a}, d.of("a", "y"))
        pool = microsoft("QLinearGlobalAveragePool", OF_ONE, channels_last=last)
        found[f"QLinearGlobalAveragePool-{last}"] = (pool, {"a": a}, d.of("a", "y"))
    for opset in (12, 13):
        soft = microsoft("QLinearSoftmax", OF_ONE, axis=1, opset=opset)
        found[f"QLinearSoftmax-{opset}"] = (soft, {"a": a}, share)
    return found


def products(d: Draw) -> dict[str, Case]:
    bias = d.rng.integers(-3000, 3000, 11).astype(np.int32)
    a, found = {"a": d.codes(4, 30)}, {}
    quantised = (*PRODUCT, "c", "ys", "yz")
    for turned, shape in ((0, (30, 11)), (1, (11, 30))):
        for channels in (0, 11):
            w = {**d.of("a", "y"), **d.weights(*shape, channels=channels), "c": bias}
            gemm = microsoft("QGemm", quantised, transB=turned)
            found[f"QGemm-{turned}-{channels}"] = (gemm, a, w)
        gemm = microsoft("QGemm", (*PRODUCT, "", "ys", "yz"), transB=turned, alpha=0.7)
        found[f"QGemm-{turned}-alpha"] = (gemm, a, w)
        found[f"QGemm-{turned}-floats"] = (microsoft("QGemm", quantised[:7], transB=turned), a, w)
    matmul = node("QLinearMatMul", (*PRODUCT, "ys", "yz"))
    stack = {"a": d.codes(2, 4, 30)}
    for channels in (0, 11):
        w = {**d.of("a", "y"), **d.weights(30, 11, channels=channels)}
        found[f"QLinearMatMul-{channels}"] = (matmul, stack, w)
    two = {**stack, "b": d.codes(2, 30, 7)}
    found["QLinearMatMul-data"] = (node("QLinearMatMul", OF_TWO), two, d.of("a", "b", "y"))
    zero = {"az": d.of("a")["az"]}
    integer = node("MatMulInteger", ("a", "w", "az", "wz"))
    found["MatMulInteger"] = (integer, stack, {**zero, "w": w["w"], "wz": np.int8(3)})
    columns = np.arange(11, dtype=np.int8)
    found["MatMulInteger-columns"] = (integer, stack, {**zero, "w": w["w"], "wz": columns})
    return found


def convolutions(d: Draw) -> dict[str, Case]:
    x, found = {"a": d.codes(2, 6, 9, 8)}, {}
    names = (*PRODUCT, "ys", "yz", "c")
    for channels in (0, 8):
        for group in (1, 2):
            w = {**d.of("a", "y"), **d.weights(8, 6 // group, 3, 3, channels=channels)}
            w["c"], w["ys"] = d.rng.integers(-3000, 3000, 8).astype(np.int32), F(0.3)
            conv = node("QLinearConv", names, pads=[1, 0, 1, 2], strides=[2, 1], group=group)
            found[f"QLinearConv-{channels}-{group}"] = (conv, x, w)
    integer = node("ConvInteger", ("a", "w", "az"), pads=[1] * 4)
    found["ConvInteger"] = (integer, x, {"az": w["az"], **d.weights(8, 6, 3, 3)})
    for zero in (120, 255):  # with the first one 8 bits hold no difference
        unsigned = {"w": d.rng.integers(0, 256, (8, 6, 3, 3)).astype(np.uint8)}
        unsigned["wz"] = np.uint8(zero)
        integers = node("ConvInteger", ("a", "w", "az", "wz"), pads=[1] * 4)
        if d.dtype == np.uint8:
            found[f"ConvInteger-unsigned-{zero}"] = (integers, x, {"az": w["az"], **unsigned})
            data = {**x, "az": np.array(d.of("a")["az"])}
            found[f"ConvInteger-unsigned-{zero}-data"] = (integers, data, unsigned)
    data = {**x, "az": np.array(d.of("a")["az"])}
    found["ConvInteger-data"] = (integer, data, d.weights(8, 6, 3, 3))
    return found


def floats(d: Draw) -> dict[str, Case]:
    x = {"x": (d.rng.standard_normal((2, 5, 9, 8)) * 3).astype(F)}
    codes = {"x": d.codes(2, 5, 9, 8)}
    along = {
        "s": d.rng.uniform(0.01, 0.1, 5).astype(F),
        "z": d.rng.integers(*d.ends, 5).astype(d.dtype),
    }
    blocks = {"s": d.rng.uniform(0.01, 0.1, (2, 5, 3, 8)).astype(F), "z": d.codes(2, 5, 3, 8)}
    one = {"s": F(0.011), "z": d.dtype.type(7)}
    data = {"s": np.array(0.02, F), "z": np.array(3, d.dtype)}
    found: dict[str, Case] = {}
    for op, given in (("QuantizeLinear", x), ("DequantizeLinear", codes)):
        names = ("x", "s", "z")
        found[op] = (node(op, names), given, one)
        found[f"{op}-axis"] = (node(op, names, axis=1), given, along)
        found[f"{op}-blocks"] = (node(op, names, axis=2, block_size=4), given, blocks)
        found[f"{op}-data"] = (node(op, names), {**given, **data}, {})
        found[f"{op}-microsoft"] = (microsoft(op, names), given, one)
    return found


def dynamic(d: Draw) -> dict[str, Case]:
    x = {"x": d.rng.standard_normal((2, 4, 30)).astype(F)}
    w = {**d.weights(30, 11), "c": d.rng.standard_normal(11).astype(F)}
    columns = d.weights(30, 11, channels=11)
    outputs = ("y", "s", "z")
    to_float = microsoft("MatMulIntegerToFloat", ("a", "w", "as", "ws", "az", "wz", "c"))
    plain = microsoft("DynamicQuantizeMatMul", ("x", "w", "ws", "wz", "c"))
    return {
        "DynamicQuantizeLinear": (node("DynamicQuantizeLinear", ("x",), outputs), x, {}),
        "DynamicQuantizeMatMul": (plain, x, w),
        "DynamicQuantizeMatMul-columns": (
            microsoft("DynamicQuantizeMatMul", ("x", "w", "ws", "wz")),
            x,
            columns,
        ),
        "MatMulIntegerToFloat": (to_float, {"a": d.codes(2, 4, 30)}, {**w, **d.of("a")}),
    }


GROUPS = [
    *((make, dtype) for make in (elementwise, products, convolutions) for dtype in CODES),
    *((floats, dtype) for dtype in (*CODES, np.int16, np.uint16)),
    (dynamic, np.uint8),
]
