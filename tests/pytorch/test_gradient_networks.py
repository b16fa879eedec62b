"""What NumPy gives for random networks with gradients, which compiled ones are held to: torch's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: leanconv[torch]")

from leanconv.graph.ir import Graph, Node  # noqa: E402
from leanconv.types import FLOAT64  # noqa: E402
from support.gradient_networks import GradientNetwork  # noqa: E402
from support.interpret import interpret  # noqa: E402

pytestmark = pytest.mark.once
F = torch.nn.functional


def padded(x: Any, pads: tuple[int, ...], value: float = 0.0) -> Any:
    """An image with what stands around it."""
    rank = len(pads) // 2
    ends = [n for axis in reversed(range(rank)) for n in (pads[axis], pads[axis + rank])]
    return F.pad(x, ends, value=value)


def forward(x: Any, w: Any, given: Any) -> Any:
    """A convolution."""
    convolve = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    x = padded(x, given["pads"])
    return convolve(x, w, None, given["strides"], 0, given["dilations"], given["group"])


def backward(x: Any, w: Any, dy: Any, given: Any) -> tuple[Any, Any]:
    """The gradients of a convolution, by autograd."""
    both = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = forward(*both, given)
    assert y.shape == dy.shape
    dx, dw = torch.autograd.grad(y, both, dy)
    return dx, dw


def transposed(node: Node, dy: Any, w: Any, shape: tuple[int, ...]) -> Any:
    """A transposed convolution: the gradient of the data of a convolution."""
    return backward(torch.zeros(shape, dtype=dy.dtype), w, dy, node.attributes)[0]


def value(node: Node, x: Any, more: list[Any], graph: Graph) -> Any:
    """What a node gives, by PyTorch's functions."""
    given, shape = node.attributes, graph.types[node.output].shape
    match node.op:
        case "DataConv" | "DataConvTranspose":
            w = more[0].reshape(len(more[0]), -1, *given["kernel_shape"])
            y = forward(x, w, given) if node.op == "DataConv" else transposed(node, x, w, shape)
            bias = more[1] if len(more) > 1 else torch.zeros(shape[1], dtype=x.dtype)
            return y + bias.reshape(-1, *[1] * (x.dim() - 2))
        case "ConvWeightGradient":
            kernel = given["kernel_shape"]
            w = torch.zeros(shape[0], shape[1] // prod(kernel), *kernel, dtype=x.dtype)
            return backward(x, w, more[0], given)[1].reshape(shape)
        case "Conv":
            return forward(x, more[0], given)
        case "ConvTranspose":
            return transposed(node, x, more[0], shape)
        case "AveragePool" | "MaxPool":
            kind = "avg" if node.op == "AveragePool" else "max"
            pool = getattr(F, f"{kind}_pool{x.dim() - 2}d")
            return pool(x, given["kernel_shape"], given["strides"])
        case "Add" | "Sub" | "Mul":
            return getattr(torch, node.op.lower())(x, more[0])
        case "Sigmoid" | "Tanh":
            return getattr(torch, node.op.lower())(x)
        case "ReduceSum":
            return x.sum(given["axes"], keepdim=given["keepdims"])
        case "Expand":
            return x.expand(given["shape"])
        case "Concat":
            return torch.cat([x, *more], given["axis"])
        case "Slice":
            axes = zip(given["starts"], given["sizes"], strict=True)
            return x[tuple(slice(first, first + count) for first, count in axes)]
    assert node.op == "Transpose", node.op
    return x.permute(given["perm"])


@pytest.mark.parametrize("seed", range(16))
def test_networks_are_torchs(seed: int) -> None:
    made = GradientNetwork(seed, FLOAT64)
    graph = made.graph()
    values = {n: torch.from_numpy(a) for n, a in (*made.inputs.items(), *graph.constants.items())}
    for node in graph.nodes:
        x, *more = (values[name] for name in node.inputs)
        values[node.output] = value(node, x, more, graph)
    for name, found in interpret(graph, made.inputs).items():
        wanted = values[name].numpy()
        largest = max(1e-3, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11 * largest, err_msg=name)
