"""Random networks that compute sizes from the shape of their input, and a check of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import leanconv
from leanconv.errors import LeanConvError

CHANNELS = 4
Shape = tuple[int, ...]


@dataclass
class ShapeNetwork:
    """A network of `x`, float32 (N, 3, H, W) with open extents.

    Attributes:
        random: decides.
        nodes, constants: of the model so far.
        maps: values (N, CHANNELS, height, width), the last one being the newest.
    """

    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    maps: list[str] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; its name."""
        return self.parts(op, 1, *inputs, **attributes)[0]

    def parts(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of some outputs; their names."""
        names = [f"{op}_{len(self.nodes)}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def ints(self, *numbers: int) -> str:
        """A constant list of integers."""
        return self.held(np.array(numbers, np.int64))

    def held(self, array: np.ndarray) -> str:
        """A constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weights(self, *shape: int) -> str:
        """Random weights."""
        numbers = [self.random.uniform(-0.5, 0.5) for _ in range(int(np.prod(shape)))]
        return self.held(np.array(numbers, np.float32).reshape(shape))

    def extent(self, value: str, axis: int) -> str:
        """An extent as a list of one integer."""
        return self.node("Gather", self.node("Shape", value), self.ints(axis))

    def list_of(self, *parts: str) -> str:
        """Lists of integers as one."""
        return self.node("Concat", *parts, axis=0)

    def divided(self, value: str, by: int) -> str:
        """Floored, as every exporter writes it in another way."""
        way = self.random.randint(0, 3)
        if way == 0:
            scale = self.held(np.array([1 / by], np.float32))
            scaled = self.node("Mul", self.node("Cast", value, to=1), scale)
            return self.node("Cast", self.node("Floor", scaled), to=7)
        if way == 1:  # torch's floor division of integers
            rest = self.node("Mod", value, self.ints(by))
            return self.node("Div", self.node("Sub", value, rest), self.ints(by))
        if way == 2:
            narrow = self.node("Cast", value, to=6)
            by32 = self.held(np.array([by], np.int32))
            return self.node("Cast", self.node("Div", narrow, by32), to=7)
        return self.node("Div", value, self.ints(by))

    def raised(self, value: str, by: int) -> str:
        """What is missing to a multiple."""
        way = self.random.randint(0, 2)
        if way == 0:
            return self.node("Mod", self.node("Neg", value), self.ints(by))
        rest = self.node("Mod", value, self.ints(by), fmod=way - 1)
        return self.node("Mod", self.node("Sub", self.ints(by), rest), self.ints(by))

    def size(self, value: str, axis: int) -> str:
        """A positive number made of extents."""
        extent, way = self.extent(value, axis), self.random.randint(0, 10)
        if way == 0:
            made = self.divided(extent, 2)
        elif way == 1:
            made = self.node("Mul", self.divided(extent, 2), self.ints(2))
        elif way == 2:
            made = self.node("Mul", extent, self.ints(2))
        elif way == 3:
            made = self.divided(self.node("Add", extent, self.ints(1)), 2)
        elif way == 4:
            both = self.node("Add", extent, self.extent(value, 5 - axis))
            made = self.divided(both, 2)
        elif way == 5:
            made = self.node("Min", extent, self.ints(self.random.randint(2, 12)))
        elif way == 6:
            chosen = self.node("Less", extent, self.ints(self.random.randint(3, 9)))
            made = self.node("Where", chosen, self.ints(5), self.node("Sub", extent, self.ints(1)))
        elif way == 7:
            pair = self.list_of(extent, self.extent(value, 5 - axis))
            op = self.random.choice(("ReduceMax", "ReduceMin"))
            made = self.node(op, pair, self.ints(0), keepdims=1)
        elif way == 8:  # the side of a square of as many pixels
            area = self.node("Mul", extent, self.extent(value, 5 - axis))
            side = self.node("Sqrt", self.node("Cast", area, to=1))
            made = self.node("Cast", self.node("Floor", side), to=7)
        elif way == 9:
            square = self.node("Pow", extent, self.ints(2))
            made = self.node(
                "Clip", self.node("Div", square, self.ints(4)), "", self.held(np.int64(9))
            )
        else:
            made = extent
        return self.node("Max", made, self.ints(1)) if self.random.random() < 0.8 else made

    def begin(self) -> None:
        """The first map, a convolution's."""
        kernel = self.random.choice((1, 3))
        w = self.weights(CHANNELS, 3, kernel, kernel)
        self.maps.append(self.node("Conv", "x", w, pads=[kernel // 2] * 4))

    def any_map(self) -> str:
        """Mostly the newest."""
        return self.maps[-1] if self.random.random() < 0.8 else self.random.choice(self.maps)

    def grow(self) -> None:
        """Add a random step, which gives a new map."""
        self.maps.append(self.random.choice(_STEPS)(self, self.any_map()))

    def model(self, tail: bool = False) -> onnx.ModelProto:
        """The newest map, or sometimes what a random tail makes of it."""
        last = self.random.choice((*_TAILS, None, None)) if tail else None
        result = last(self, self.maps[-1]) if last else self.maps[-1]
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", 1, ["N", 3, "H", "W"])],
            [helper.make_tensor_value_info("y", 1, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _conv(net: ShapeNetwork, x: str) -> str:
    kernel, stride = net.random.choice((1, 3)), net.random.choice((1, 1, 2))
    groups = net.random.choice((1, 1, CHANNELS))
    w = net.weights(CHANNELS, CHANNELS // groups, kernel, kernel)
    if net.random.random() < 0.2:
        return net.node("Conv", x, w, group=groups, strides=[stride] * 2, auto_pad="SAME_UPPER")
    return net.node("Conv", x, w, group=groups, strides=[stride] * 2, pads=[kernel // 2] * 4)


def _pool(net: ShapeNetwork, x: str) -> str:
    kernel = net.random.choice((2, 3))
    return net.node(
        net.random.choice(("MaxPool", "AveragePool")),
        x,
        kernel_shape=[kernel] * 2,
        strides=[net.random.choice((1, 2))] * 2,
        pads=[net.random.randint(0, 1)] * 4,
        ceil_mode=net.random.randint(0, 1),
    )


def _activation(net: ShapeNetwork, x: str) -> str:
    return net.node(net.random.choice(("Relu", "Sigmoid", "HardSwish", "Elu")), x)


def _resize(net: ShapeNetwork, x: str) -> str:
    begin = net.node("Slice", net.node("Shape", x), net.ints(0), net.ints(2))
    sizes = net.list_of(begin, net.size(x, 2), net.size(x, 3))
    return _resized(net, x, sizes)


def _resized(net: ShapeNetwork, x: str, sizes: str) -> str:
    mode = net.random.choice(("nearest", "linear"))
    coordinates = net.random.choice(("asymmetric", "half_pixel"))
    return net.node(
        "Resize",
        x,
        "",
        "",
        sizes,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor",
    )


def _added(net: ShapeNetwork, x: str) -> str:
    """A map brought to the size of another one, and added to it."""
    other = net.random.choice(net.maps)
    return net.node("Add", _resized(net, x, net.node("Shape", other)), other)


def _unshuffle(net: ShapeNetwork, x: str) -> str:
    """Blocks of pixels as channels, of a map cut to a multiple; a convolution brings them back."""
    h, w = (net.divided(net.extent(x, axis), 2) for axis in (2, 3))
    x = _cropped(net, x, *(net.node("Mul", extent, net.ints(2)) for extent in (h, w)))
    n, two = net.extent(x, 0), net.ints(2)
    split = net.node("Reshape", x, net.list_of(n, net.ints(CHANNELS), h, two, w, two))
    near = net.node("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    flat = net.node("Reshape", near, net.list_of(n, net.ints(4 * CHANNELS), h, w))
    return net.node("Conv", flat, net.weights(CHANNELS, 4 * CHANNELS, 1, 1))


def _cropped(net: ShapeNetwork, x: str, height: str, width: str) -> str:
    return net.node("Slice", x, net.ints(0, 0), net.list_of(height, width), net.ints(2, 3))


def _windows(net: ShapeNetwork, x: str) -> str:
    """Padded to a multiple, cut into windows, softmax over each, put together and cut."""
    edge = net.random.choice((2, 3, 4))
    h, w = net.extent(x, 2), net.extent(x, 3)
    pads = net.list_of(net.ints(0, 0, 0, 0, 0, 0), net.raised(h, edge), net.raised(w, edge))
    padded = net.node("Pad", x, pads)
    n, rows, columns = (
        net.extent(padded, 0),
        net.divided(net.extent(padded, 2), edge),
        net.divided(net.extent(padded, 3), edge),
    )
    c, e = net.ints(CHANNELS), net.ints(edge)
    split = net.node("Reshape", padded, net.list_of(n, c, rows, e, columns, e))
    near = net.node("Transpose", split, perm=[0, 2, 4, 3, 5, 1])
    windows = net.node("Reshape", near, net.ints(-1, edge * edge, CHANNELS))
    done = net.node("Softmax", windows, axis=1)
    apart = net.node("Reshape", done, net.list_of(n, rows, columns, e, e, c))
    back = net.node("Transpose", apart, perm=[0, 5, 1, 3, 2, 4])
    sides = (net.node("Mul", extent, e) for extent in (rows, columns))
    return _cropped(net, net.node("Reshape", back, net.list_of(n, c, *sides)), h, w)


def _cut(net: ShapeNetwork, x: str) -> str:
    way = net.random.randint(0, 3)
    if way == 0:
        return _cropped(net, x, net.size(x, 2), net.size(x, 3))
    if way == 1:  # every second one
        start, step = net.random.choice(((0, 2), (1, 2), (-1, -1), (-1, -2)))
        end = 1 << 62 if step > 0 else -(1 << 62)
        axis = net.random.choice((2, 3))
        return net.node("Slice", x, *(net.ints(n) for n in (start, end, axis, step)))
    start = net.divided(net.extent(x, 2), 2)
    if way == 2:
        return net.node("Slice", x, start, net.ints(1 << 62), net.ints(2))
    back = net.node("Neg", net.node("Max", start, net.ints(1)))
    return net.node("Slice", x, net.ints(0), back, net.ints(2))


def _split(net: ShapeNetwork, x: str) -> str:
    """Two parts along an axis, exchanged."""
    axis = net.random.choice((2, 3))
    half = net.divided(net.extent(x, axis), 2)
    sizes = net.list_of(half, net.node("Sub", net.extent(x, axis), half))
    one, other = net.parts("Split", 2, x, sizes, axis=axis)
    return net.node("Concat", other, one, axis=axis)


def _positions(net: ShapeNetwork, x: str) -> str:
    """The number of each column, or of each row, is added."""
    axis = net.random.choice((2, 3))
    end = net.node("Squeeze", net.extent(x, axis), net.ints(0))
    zero, one = (net.held(np.array(n, np.int64)) for n in (0, 1))
    numbers = net.node("Cast", net.node("Range", zero, end, one), to=1)
    if axis == 2:
        numbers = net.node("Unsqueeze", numbers, net.ints(1))
    return net.node("Add", x, net.node("Mul", numbers, net.held(np.float32([0.125]))))


def _anchors(net: ShapeNetwork, x: str) -> str:
    """Centres of the pixels, as a detector has them, scaled by sides; some are left out."""
    sides = []
    for axis in (2, 3):
        end = net.node("Squeeze", net.extent(x, axis), net.ints(0))
        limit = net.node("Cast", end, to=1)
        first, step = (net.held(np.float32(n)) for n in (0, net.random.choice((1, 1, 2))))
        centres = net.node("Add", net.node("Range", first, limit, step), net.held(np.float32(0.5)))
        if net.random.randint(0, 1):
            centres = net.node("Mul", centres, net.node("Cast", net.size(x, axis), to=1))
        sides.append(centres)
    rows = net.node("ReduceSum", sides[0], net.ints(0), keepdims=1)
    shape = net.list_of(net.ints(1), *(net.extent(x, axis) for axis in (2, 3)))
    grid = net.node("Expand", net.node("ReduceMean", sides[1], net.ints(0), keepdims=1), shape)
    grid = net.node("Add", net.node("Mul", grid, net.held(np.float32(0.01))), rows)
    if net.random.randint(0, 1):
        small = net.node("Greater", grid, net.held(np.float32(net.random.choice((1, 40)))))
        return net.node("Where", small, x, net.held(np.float32(0.25)))
    filled = net.node("ConstantOfShape", net.node("Shape", grid))
    way = net.random.randint(0, 2)
    if way == 0:  # as large as a side
        places = net.node("NonZero", net.node("Add", filled, net.held(np.float32(1))))
        count = net.node("Gather", net.node("Shape", places), net.ints(1))
        scale = net.node("Div", net.node("Cast", count, to=1), net.held(np.float32([64])))
        return net.node("Mul", x, scale)
    if way == 1:
        kept = net.node("Mul", net.node("Sub", filled, grid), net.held(np.float32(0.125)))
        return net.node("Add", net.node("Relu", x), kept)
    return net.node("Div", x, net.node("Add", grid, net.held(np.float32(2))))


def _pooled(net: ShapeNetwork, x: str) -> str:
    """What a map is on average, at each of its pixels."""
    kept = net.node("GlobalAveragePool", x)
    way, shape = net.random.randint(0, 2), net.node("Shape", x)
    if way == 0:
        return net.node("Mul", net.node("Expand", kept, shape), x)
    if way == 1:
        ones = net.held(np.ones(4, np.int64))
        open_ = net.node("Equal", shape, net.ints(-1, -1, -1, -1))
        wide = net.node("Where", open_, ones, shape)
        return net.node("Sub", x, net.node("Expand", kept, wide))
    repeats = net.list_of(net.ints(1, 1), net.extent(x, 2), net.extent(x, 3))
    return net.node("Add", x, net.node("Tile", kept, repeats))


def _filled(net: ShapeNetwork, x: str) -> str:
    shape = net.list_of(net.ints(1, 1), net.extent(x, 2), net.extent(x, 3))
    value = numpy_helper.from_array(np.array([0.5], np.float32))
    ones = net.node("ConstantOfShape", shape, value=value)
    if net.random.randint(0, 1):
        return net.node("Add", x, ones)
    return net.node("Concat", *_halves(net, x), axis=1)


def _halves(net: ShapeNetwork, x: str) -> list[str]:
    one, other = net.parts("Split", 2, x, net.ints(2, CHANNELS - 2), axis=1)
    return [other, one]


def _flattened(net: ShapeNetwork, x: str) -> str:
    """Pixels as a row, then softmax, then a map again."""
    n, h, w = (net.extent(x, axis) for axis in (0, 2, 3))
    c = net.ints(CHANNELS)
    count = net.node("ReduceProd", net.list_of(h, w), net.ints(0), keepdims=1)
    row = net.ints(-1) if net.random.randint(0, 1) else count
    tokens = net.node("Transpose", net.node("Reshape", x, net.list_of(n, c, row)), perm=[0, 2, 1])
    tokens = net.node("MatMul", tokens, net.weights(CHANNELS, CHANNELS))
    back = net.node("Transpose", tokens, perm=[0, 2, 1])
    return net.node("Reshape", back, net.list_of(n, c, h, w))


_STEPS: tuple[Callable[[ShapeNetwork, str], str], ...] = (
    *(_conv, _pool, _resize, _windows, _unshuffle, _cut, _split, _added) * 2,
    *(_activation, _positions, _anchors, _anchors, _pooled, _filled, _flattened),
)


def _flat_tail(net: ShapeNetwork, x: str) -> str:
    n = net.extent(x, 0)
    parts = [net.extent(x, axis) for axis in (1, 2, 3)]
    if net.random.randint(0, 1):
        count = net.node("Mul", net.node("Mul", parts[0], parts[1]), parts[2])
    else:
        count = net.node("ReduceProd", net.list_of(*parts), net.ints(0), keepdims=1)
    return net.node("Reshape", x, net.list_of(n, count))


def _mean_tail(net: ShapeNetwork, x: str) -> str:
    flat = net.node("Reshape", x, net.ints(0, 0, -1))
    return net.node("ReduceMean", flat, net.ints(2), keepdims=net.random.randint(0, 1))


def _flatten_tail(net: ShapeNetwork, x: str) -> str:
    return net.node("Flatten", x, axis=net.random.randint(1, 3))


def _dense_tail(net: ShapeNetwork, x: str) -> str:
    pooled = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.node("Gemm", pooled, net.weights(CHANNELS, 5))


_TAILS = (_flat_tail, _mean_tail, _flatten_tail, _dense_tail)


def random_network(random: Random, steps: int) -> bytes:
    """A model of some random steps."""
    net = ShapeNetwork(random)
    net.begin()
    for _ in range(steps):
        net.grow()
    return net.model(tail=True).SerializeToString()


def random_shapes(random: Random, count: int) -> list[Shape]:
    """Input shapes in random order, small ones and some twice."""

    def extent() -> int:
        return random.choice((random.randint(1, 4), random.randint(1, 40), random.randint(5, 17)))

    shapes = [(random.choice((0, 1, 1, 1, 2, 2, 3)), 3, extent(), extent()) for _ in range(count)]
    return [*shapes, *random.sample(shapes, count // 2)]


def check_shapes(data: bytes, shapes: Sequence[Shape]) -> Counter[str]:
    """Run a network at some shapes; compare with ONNX Runtime and with the network loaded anew.

    Nothing but `LeanConvError` may be raised, and by both or neither of the two.

    Returns:
        How many calls were `right`, were `refused` though ONNX Runtime takes them, and `failed` in
        both.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(data, options)
    net, counts = leanconv.load(data, threads=1), Counter[str]()
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        anew = leanconv.load(data, threads=1)
        got, fresh = _called(net, x), _called(anew, x)
        try:
            wanted = session.run(["y"], {"x": x})[0]
        except Exception:  # its own classes have no common root
            wanted = None
        if isinstance(got, str) or isinstance(fresh, str):
            assert got == fresh, (shape, got, fresh)
            counts["failed" if wanted is None else "refused"] += 1
            continue
        assert np.array_equal(got, fresh, equal_nan=True), (shape, "another shape decides on bits")
        assert net.explain() == anew.explain(), (shape, "another shape decides on the plan")
        if wanted is not None:
            assert got.shape == wanted.shape, (shape, got.shape, wanted.shape)
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3, err_msg=str(shape))
        counts["right"] += 1
    return counts


def _called(net: leanconv.Network, x: np.ndarray) -> np.ndarray | str:
    try:
        result: np.ndarray = net(x)
    except LeanConvError as error:
        return f"{type(error).__name__}: {error}"
    return result
