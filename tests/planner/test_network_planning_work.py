"""No step from a file to code is linear in an extent: lines are counted, not time.

Networks of few nodes, an extent once 2^12 and once 2^20: read, bound, passed, planned, emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import PASSES, run_passes
from leanconv.graph.verify import check_flowing
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.counted import check_growth
from support.network_models import small

pytestmark = pytest.mark.presets
SMALL, LARGE = 2**12, 2**20
TARGET = preset("znver4")
LIMITS = Limits(fold_bytes=1 << 30, made_bytes=1 << 30)  # tables of a Resize to millions of columns
Shape = tuple[int, ...]
Nodes = Sequence[onnx.NodeProto]


def _planner(built: bytes) -> Planner:
    model = read_model(built, LIMITS)
    shapes = {port.name: port.static_shape for port in model.inputs}
    bound = model.bind({n: s for n, s in shapes.items() if s is not None}, dtype=FLOAT32)
    graph = check_flowing(run_passes(bound, PASSES))
    return Planner(graph, TARGET, 2, Accuracy(1e-6, False).of_network(graph, TARGET))


def _plan(built: bytes, limits: bool = False) -> None:
    """Everything that is done at load but packing and compiling; with limits, the smallest too."""
    planner = _planner(built)
    found = planner.within(None)
    if limits:
        least = planner.smallest
        planner.within(least.memory_bytes)
        planner.within((least.memory_bytes + found.memory_bytes) // 2 + 1)
    for step in found.lowered.steps:
        for call in step.calls:
            call.kernel.emit(TARGET)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _at(base: Shape, axis: int) -> Callable[[int], Shape]:
    return lambda n: (*base[:axis], n, *base[axis + 1 :])


Case = Callable[[int], bytes]
CASES: dict[str, Case] = {}


def _case(
    name: str,
    node: Callable[[int], onnx.NodeProto | Nodes],
    shape: Callable[[int], Shape],
    constants: Callable[[int], dict[str, np.ndarray]] = lambda _: {},
) -> None:
    def make(n: int) -> bytes:
        made = node(n)
        nodes = [made] if isinstance(made, onnx.NodeProto) else made
        return small(nodes, {"x": shape(n)}, {"y": []}, constants(n))

    CASES[name] = make


def _between_pools(name: str, node: Nodes, base: Shape, axes: Shape, **constants: Any) -> None:
    """Nodes from p to q in blocks of channels, as pools are."""
    pool = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}
    nodes = [
        make_node("MaxPool", ["x"], ["p"], **pool),
        *node,
        make_node("MaxPool", ["q"], ["y"], **pool),
    ]
    for axis in axes:
        _case(f"{name} {'nchw'[axis]}", lambda _: nodes, _at(base, axis), lambda _: constants)


_MAP = (2, 16, 12, 12)
_PADS = [1, 1, 1, 1]
for _axis in (0, 2, 3):
    _letter, _shape = "nchw"[_axis], _at(_MAP, _axis)
    _case(
        f"Conv {_letter}",
        lambda _: make_node("Conv", ["x", "w"], ["y"], pads=_PADS),
        _shape,
        lambda _: {"w": _ones(8, 16, 3, 3)},
    )
    _case(
        f"depthwise Conv {_letter}",
        lambda _: make_node("Conv", ["x", "w"], ["y"], pads=_PADS, group=16),
        _shape,
        lambda _: {"w": _ones(16, 1, 3, 3)},
    )
    _case(
        f"ConvTranspose {_letter}",
        lambda _: make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
        _shape,
        lambda _: {"w": _ones(16, 8, 4, 4)},
    )
_case(
    "ConvTranspose dilation",
    lambda n: make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1], dilations=[n, 1]),
    lambda n: (1, 2, n // 2, 12),
    lambda _: {"w": _ones(2, 2, 3, 3)},
)
_case(
    "ConvTranspose kernel",
    lambda n: make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1]),
    lambda n: (1, 2, 8, 8),
    lambda n: {"w": _ones(2, 2, n, 1)},
)
for _op in ("MaxPool", "AveragePool"):
    for _axis in range(4):
        _case(
            f"{_op} {'nchw'[_axis]}",
            lambda _, op=_op: make_node(op, ["x"], ["y"], kernel_shape=[3, 3], pads=_PADS),
            _at(_MAP, _axis),
        )
    _case(
        f"{_op} window",
        lambda n, op=_op: make_node(
            op, ["x"], ["y"], kernel_shape=[3, n], pads=[1, n // 2, 1, n // 2]
        ),
        lambda n: (1, 8, 12, n),
    )
    _case(
        f"{_op} stride",
        lambda n, op=_op: make_node(op, ["x"], ["y"], kernel_shape=[3, 3], strides=[1, n]),
        lambda n: (1, 8, 12, 4 * n),
    )
for _mode in ("constant", "edge", "reflect"):
    for _axis in (1, 2, 3):
        _case(
            f"Pad {_mode} {'nchw'[_axis]}",
            lambda _, mode=_mode: make_node("Pad", ["x", "s"], ["y"], mode=mode),
            _at(_MAP, _axis),
            lambda _: {"s": _ints(0, 3, 1, 2, 0, 5, 3, 1)},
        )
    _case(
        f"Pad {_mode} width",
        lambda _, mode=_mode: make_node("Pad", ["x", "s"], ["y"], mode=mode),
        lambda n: (1, 4, 8, n + 1),
        lambda n: {"s": _ints(0, 0, 0, n, 0, 0, 0, n)},
    )
    _between_pools(
        f"blocked Pad {_mode}",
        [make_node("Pad", ["p", "s"], ["q"], mode=_mode)],
        _MAP,
        (1, 2),
        s=_ints(0, 3, 1, 2, 0, 5, 3, 1),
    )
for _axis in range(4):
    _between_pools(
        f"Slice {_axis}",
        [make_node("Slice", ["p", "a", "b", "c", "d"], ["q"])],
        _MAP,
        (1, 3),
        a=_ints(1),
        b=_ints(2**40),
        c=_ints(_axis),
        d=_ints(3),
    )
    _between_pools(
        f"Concat {_axis}",
        [make_node("Relu", ["p"], ["r"]), make_node("Concat", ["p", "r"], ["q"], axis=_axis)],
        (2, 20, 12, 12),
        (1, 2),
    )
_between_pools("Transpose", [make_node("Transpose", ["p"], ["q"], perm=[0, 1, 3, 2])], _MAP, (1, 3))
for _mode in ("nearest", "linear"):
    _between_pools(
        f"Resize {_mode}",
        [make_node("Resize", ["p", "", "s"], ["q"], mode=_mode)],
        _MAP,
        (0, 1, 2, 3),
        s=np.array([1, 1, 1.7, 2], np.float32),
    )
for _axis, _name in ((0, "m"), (1, "k")):
    _case(
        f"MatMul {_name}",
        lambda _: make_node("MatMul", ["x", "w"], ["y"]),
        _at((7, 32), _axis),
        lambda n, axis=_axis: {"w": _ones(n if axis else 32, 3)},
    )
_case(
    "MatMul n",
    lambda _: make_node("MatMul", ["x", "w"], ["y"]),
    lambda _: (7, 3),
    lambda n: {"w": _ones(3, n)},
)
for _op, _more in (
    ("Softmax", {"axis": 1}),
    ("LRN", {"size": 5}),
    ("ReduceMean", {"axes": [2, 3]}),
    ("GlobalAveragePool", {}),
):
    for _axis in range(4):
        _case(
            f"{_op} {'nchw'[_axis]}",
            lambda _, op=_op, more=_more: make_node(op, ["x"], ["y"], **more),
            _at(_MAP, _axis),
        )


@pytest.mark.drawn
@pytest.mark.parametrize("name", CASES)
def test_planning_a_node_is_not_linear_in_an_extent(name: str) -> None:
    small_one, large_one = CASES[name](SMALL), CASES[name](LARGE)
    built = {SMALL: small_one, LARGE: large_one}
    check_growth(lambda n: _plan(built[n]), SMALL, LARGE)


def _mobile(height: int, width: int, batch: int) -> bytes:
    """A convolution, two inverted residuals of expansion 6, and a pooling."""
    nodes = [make_node("Conv", ["x", "first"], ["b0"], pads=_PADS, strides=[2, 2])]
    constants = {"first": _ones(8, 3, 3, 3), "low": np.float32(0), "high": np.float32(6)}
    for number in (0, 1):
        b, e, f, g, h, i = (f"{letter}{number}" for letter in "befghi")
        nodes += [
            make_node("Conv", [b, "expand"], [e]),
            make_node("Clip", [e, "low", "high"], [f]),
            make_node("Conv", [f, "depthwise"], [g], pads=_PADS, group=48),
            make_node("Clip", [g, "low", "high"], [h]),
            make_node("Conv", [h, "project"], [i]),
            make_node("Add", [i, b], [f"b{number + 1}"]),
        ]
    nodes.append(make_node("MaxPool", ["b2"], ["y"], kernel_shape=[2, 2], strides=[2, 2]))
    constants |= {
        "expand": _ones(48, 8, 1, 1),
        "depthwise": _ones(48, 1, 3, 3),
        "project": _ones(8, 48, 1, 1),
    }
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    return small(nodes, {"x": (batch, 3, height, width)}, {"y": []}, arrays)


@pytest.mark.parametrize("extent", ["height", "width", "batch"])
def test_planning_a_network_within_limits_is_not_linear_in_an_extent(extent: str) -> None:
    def built(n: int) -> bytes:
        return _mobile(*(n if extent == name else 16 for name in ("height", "width", "batch")))

    check_growth(lambda n: _plan(built(n), limits=True), SMALL, LARGE)


def test_a_stride_of_too_many_phases_is_one_product_at_once() -> None:
    node = make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2**30, 1])
    built = small([node], {"x": (1, 2, 3, 4)}, {"y": []}, {"w": _ones(2, 2, 3, 3)})
    _plan(built)
