"""Blocks of convolutions of codes for tests: their graph, one by one and fused."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.passes.fuse_blocks import fuse_blocks, merge_blocks, mergeable
from leanconv.graph.verify import verify
from leanconv.spec.requantise import ResidualCodes
from leanconv.types import FLOAT32, INT8, UINT8, DType, as_dtype
from support.interpret import interpret
from support.quantised_convs import numbers


class CodeNet:
    """A network of codes that grows convolution by convolution.

    Args:
        shape: of the input `x`.
        dtype: of all codes.
        seed: of all numbers.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType = UINT8, seed: int = 0) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype
        self.types = {"x": TensorType(shape, dtype)}
        self.zeros = {"x": int(dtype.low) + 97}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.inputs = ["x"]

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int = 1,
        residual: str = "",
        zero: int = 60,
        w_dtype: DType = INT8,
        **given: Any,
    ) -> str:
        """Add a convolution with the zero of its result; return the result's name."""
        rng, low, number = self.rng, int(self.dtype.low), len(self.nodes)
        group = given.get("group", 1)
        size = kernel * kernel * self.types[x].shape[1] // group
        held = {
            f"w{number}": numbers(rng, (outputs, size // kernel**2, kernel, kernel), w_dtype),
            f"b{number}": rng.integers(-4000, 4000, outputs, np.int32) if number % 3 else None,
            f"s{number}": (rng.random(outputs) * 300 / (8000 * size**0.5)).astype(np.float32),
            f"a{number}": None,
        }
        if given.get("activation"):
            held[f"s{number}"] /= 50
            held[f"a{number}"] = rng.normal(0, 60, (2, outputs)).astype(np.float32)
        self.constants |= {name: array for name, array in held.items() if array is not None}
        for name, array in held.items():
            if array is not None:
                self.types[name] = TensorType(array.shape, as_dtype(array.dtype))
        attributes = {
            "strides": (1, 1),
            "pads": (0,) * 4,
            "dilations": (1, 1),
            "group": 1,
            "x_zero": self.zeros[x],
            "y_zero": low + zero,
            "low": low + 3,
            "high": low + 250,
            "dtype": self.dtype,
            "residual": None,
            "activation": None,
            **given,
        }
        own = [name if array is not None else "" for name, array in held.items()]
        names = [x, *own[:3], residual, own[3]]
        if residual:
            first = bool(rng.integers(2))
            attributes["residual"] = ResidualCodes(
                low + 91, low + 3, low + 250, 0.031, 0.0172, 0.0403, self.zeros[residual], first
            )
        node = Node("QLinearConv", tuple(names), (f"y{number}",), frozen(attributes), "conv")
        (self.types[node.output],) = infer_node(node, self.types)
        self.zeros[node.output] = low + zero
        self.nodes.append(node)
        return node.output

    def image(self, channels: int, pads: tuple[int, ...], size: tuple[int, int]) -> str:
        """Add an image of floats as an input, its codes and a border of their zero."""
        zero = np.array(int(self.dtype.low) + 114, self.dtype)
        self.inputs = ["x"]
        self.types["x"] = TensorType((2, channels, *size), FLOAT32)
        self.constants |= {"scale": np.array(0.02, "f4"), "zero": zero}
        self.types |= {"scale": TensorType((), FLOAT32), "zero": TensorType((), self.dtype)}
        names = ("x", "scale", "zero")
        self.nodes.append(Node("QuantizeLinear", names, ("q",), frozen({"axis": 1}), "image"))
        self.types["q"] = TensorType(self.types["x"].shape, self.dtype)
        self.zeros["q"] = int(zero)
        return self.padded("q", pads) if any(pads) else "q"

    def looked_up(self, x: str) -> str:
        """Look codes up in a table."""
        table = numbers(self.rng, (256,), self.dtype)
        name = f"t{len(self.nodes)}"
        self.constants[name], self.types[name] = table, TensorType((256,), self.dtype)
        node = Node("Lookup", (x, name), (f"{x}t",), frozen({}), "table")
        (self.types[node.output],) = infer_node(node, self.types)
        self.zeros[node.output] = self.zeros[x]
        self.nodes.append(node)
        return node.output

    def padded(self, x: str, pads: tuple[int, ...]) -> str:
        """Add a border of the zero's code."""
        around, zero = (0, 0, *pads[:2], 0, 0, *pads[2:]), self.zeros[x]
        attributes = frozen({"pads": around, "mode": "constant", "value": float(zero)})
        node = Node("Pad", (x,), (f"{x}p",), attributes, "border")
        (self.types[node.output],) = infer_node(node, self.types)
        self.zeros[node.output] = zero
        self.nodes.append(node)
        return node.output

    def block(
        self,
        x: str,
        inner: int,
        outputs: int,
        kernel: int = 3,
        residual: str = "",
        first: tuple[int, int] = (1, 1),
        border: bool = False,
        tables: bool = False,
        **given: Any,
    ) -> str:
        """Add an inverted residual, or without `inner` a separable convolution.

        Args:
            x: its input.
            inner: channels between.
            outputs: channels after.
            kernel: of the depthwise convolution, padded evenly if not otherwise given.
            residual: what is added.
            first: kernel and stride of the first convolution.
            border: whether the padding between them is of another code than 0.
            tables: whether codes are looked up between convolutions.
            **given: attributes of the depthwise convolution.
        """
        y, low = x, int(self.dtype.low)
        code = 41 if border else -low if low else 0  # without a border padding is of code 0
        if inner:
            k, stride = first
            around = 0 if x == "qp" else k // 2
            pads = {"pads": (around,) * 4, "strides": (stride, stride)}
            if around:
                self.zeros[x] = 0
            y = self.conv(y, inner, k, zero=code, **pads)
            y = self.looked_up(y) if tables else y
        channels = self.types[y].shape[1]
        settings = {"pads": (kernel // 2,) * 4, "group": channels, **given}
        if any(settings["pads"]) and border:
            y = self.padded(y, settings.pop("pads"))
            settings["pads"] = (0,) * 4
        elif any(settings["pads"]):
            self.zeros[y] = 0
        y = self.conv(y, channels, kernel, **settings)
        y = self.looked_up(y) if tables else y
        return self.conv(y, outputs, residual=residual)

    def graph(self, *outputs: str) -> Graph:
        """The convolutions, one by one."""
        made = Graph(
            tuple(self.inputs), outputs, tuple(self.nodes), dict(self.types), dict(self.constants)
        )
        return verify(made)

    def fused(self, output: str, merged: bool = False) -> Graph:
        """The same as one ConvChain, or as one BlockChain."""
        graph = verify(fuse_blocks(self.graph(output)))
        return verify(merge_blocks(graph, mergeable(graph))) if merged else graph

    def values(self) -> dict[str, np.ndarray]:
        """Codes for the inputs."""
        rng = np.random.default_rng(9)
        types = {name: self.types[name] for name in self.inputs}
        return {
            name: rng.normal(0, 1.5, kind.shape).astype(np.float32)
            if kind.dtype.is_float
            else numbers(rng, kind.shape, self.dtype)
            for name, kind in types.items()
        }

    def expected(self, output: str) -> np.ndarray:
        """What the convolutions give one by one, by the definition."""
        return interpret(self.graph(output), self.values())[output]
