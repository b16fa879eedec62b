"""Every attack that a model file can try ends as an error, quickly and in little memory."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graph.onnx_models import model, small_cnn
from leanconv.errors import InputError, LeanConvError, ModelError, UnsupportedError
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model

MIB = 1 << 20


@contextmanager
def bounded(seconds: float = 2.0, peak_bytes: int = 16 * MIB) -> Iterator[None]:
    """Fail when the body takes longer or holds more memory at once."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        yield
    finally:
        taken = time.perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert taken < seconds, f"took {taken:.2f} s"
    assert peak < peak_bytes, f"held {peak / MIB:.1f} MiB"


def refused(data: bytes, what: str, **bounds: Any) -> None:
    """Reading, or else binding, must raise an error that says `what`."""
    with bounded(**bounds), pytest.raises(LeanConvError, match=what):
        bound(data)


def bound(data: bytes) -> None:
    """Read a model and bind it, 2 standing for every extent that it leaves open."""
    found = read_model(data)
    found.bind(
        {
            each.name: tuple(n if isinstance(n, int) else 2 for n in each.shape or ())
            for each in found.inputs
        }
    )


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def network(
    nodes: list[onnx.NodeProto], held: dict[str, Any] | None = None, opset: int = 17
) -> bytes:
    return model(nodes, {"x": (1, 4, 8, 8)}, ["y"], held, opset).SerializeToString()


WINDOW_ERRORS = "expected|weight|larger"

# -- the bytes of the file ---------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0", b"not a model", b"\x08\x08", b"\xff" * 100])
def test_no_model_at_all(data: bytes) -> None:
    refused(data, "expected")


def test_every_truncation() -> None:
    data = small_cnn().SerializeToString()
    for end in range(0, len(data), 37):
        with pytest.raises(LeanConvError):
            read_model(data[:end])


def test_a_length_beyond_the_file() -> None:
    refused(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "truncated or damaged")


def test_an_endless_number() -> None:
    refused(b"\x08" + b"\x80" * 50, "over 10 bytes")


def test_groups_and_wrong_wire_types() -> None:
    refused(b"\x3b\x3c", "wire type 3")
    refused(b"\x38\x01", "wire type 0")


def test_a_graph_that_stands_twice() -> None:
    data = small_cnn().SerializeToString()
    refused(data + data, "stands twice")


def test_a_file_of_empty_messages() -> None:
    """Two bytes a field: objects for all of them would take a hundred times the file."""
    field = b"\x0a\x00" * (4 * MIB)
    graph = b"\x42\x02\x10\x11\x3a" + _varint(len(field)) + field
    with bounded(10, 64 * MIB), pytest.raises(ModelError, match="over 100000 entries 'node'"):
        read_model(graph)
    field = field.replace(b"\x0a", b"\x2a")
    graph = b"\x42\x02\x10\x11\x3a" + _varint(len(field)) + field
    with bounded(10, 64 * MIB), pytest.raises(ModelError, match="over 200000 fields"):
        read_model(graph, Limits(fields=200_000))
    with bounded(2), pytest.raises(ModelError, match="over 1000 fields"):
        read_model(graph, Limits(fields=1000))


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_nested_without_end() -> None:
    data = b""
    for _ in range(2000):
        graph = b"\x0a" + _varint(len(data)) + data if data else b""
        attribute = b"\x32" + _varint(len(graph)) + graph
        data = b"\x2a" + _varint(len(attribute)) + attribute
    proto = b"\x42\x02\x10\x11\x3a"
    whole = b"\x0a" + _varint(len(data)) + data
    refused(proto + _varint(len(whole)) + whole, "not supported")


def test_subgraphs_are_refused() -> None:
    inner = helper.make_graph([], "inner", [], [])
    for op in ("If", "Loop", "Scan"):
        refused(network([node(op, "x", body=inner)]), f"{op}.*not supported")
    refused(network([node("Softmax", "x", axis=inner)]), "of kind graph; expected int")


def test_names_that_are_not_utf8() -> None:
    data = network([node("Relu", "x")])
    assert b"Relu" in data
    refused(data.replace(b"Relu", b"R\xfflu"), "not UTF-8")


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with bounded(), pytest.raises(InputError, match="expected at most 2147483647"):
        read_model(path)
    with pytest.raises(ModelError, match="expected at most 10"):
        read_model(b"0" * 11, Limits(file_bytes=10))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "pipe.onnx", tmp_path, Path(os.devnull), Path("a\0b")):
        with bounded(), pytest.raises(InputError, match="expected|cannot be read"):
            read_model(path)


# -- tensors -----------------------------------------------------------------------------------


def held(dims: list[int], data: bytes = b"", **fields: Any) -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=data)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    proto = model([node("Conv", "x w")], {"x": (1, 4, 8, 8)}, ["y"])
    proto.graph.initializer.append(tensor)
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        ([2**62, 4], "data for 4"),
        ([2**32, 2**32], "data for 4"),
        ([2**63 - 1] * 16, "data for 4"),
        ([1] * 17 + [4], "at most 16 extents"),
        ([-1, 4], "at least 0"),
        ([5], "data for 4"),
        ([], "data for 4"),
    ],
)
def test_dims_that_do_not_fit_the_data(dims: list[int], what: str) -> None:
    refused(held(dims, bytes(16)), what)


def test_data_of_the_wrong_length() -> None:
    refused(held([4], bytes(15)), "multiple of 4")
    refused(held([4], float_data=[1.0, 2.0]), "data for 0")


def test_data_types() -> None:
    for number, what in ((16, "bfloat16"), (8, "string"), (22, "int4"), (99, "element type 99")):
        refused(held([4], bytes(16), data_type=number), what)


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ((4, 4, 3, 3, 3), "of rank 5; expected rank 4"),
        ((4, 4, 3), "expected rank 4"),
        ((4,), "expected rank 4"),
        ((), "expected rank 4"),
        ((4, 3, 3, 3), "expected an input of 3 channels"),
        ((0, 4, 3, 3), "extents of at least 1"),
        ((4, 4, 0, 3), "extents of at least 1"),
        ((4, 4, 9, 9), "larger input"),
    ],
)
def test_weights_of_the_wrong_shape(shape: tuple[int, ...], what: str) -> None:
    for op in (
        ("Conv", "ConvTranspose") if "channels" not in what and "larger" not in what else ("Conv",)
    ):
        refused(network([node(op, "x w")], {"w": np.zeros(shape, "f4")}), what)


def test_inputs_of_the_wrong_rank() -> None:
    for shape in ((), (4,), (1, 4), (1,) * 6):
        for op, held_arrays in (
            ("Conv", {"w": np.zeros((4, 4, 3, 3), "f4")}),
            ("GlobalAveragePool", {}),
            ("MaxPool", {}),
        ):
            each = node(op, " ".join(["x", *held_arrays]), kernel_shape=[1, 1])
            if op == "GlobalAveragePool":
                each = node(op, "x")
            proto = model([each], {"x": shape}, ["y"], held_arrays)
            refused(proto.SerializeToString(), "rank|kernel_shape")


# -- external data -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "good.bin").write_bytes(bytes(576))
    (tmp_path / "secret.bin").write_bytes(bytes(576))
    return inside


def external(folder: Path, **entries: str) -> Path:
    proto = onnx.load_from_string(held([4, 4, 3, 3], data_location=TensorProto.EXTERNAL))
    proto.graph.initializer[0].ClearField("raw_data")
    for key, value in entries.items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_inside_is_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link.bin").symlink_to(folder / "good.bin")
    for location in ("good.bin", "./good.bin", "sub/link.bin"):
        assert read_model(external(folder, location=location)).constants["w"].shape == (4, 4, 3, 3)


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "sub/../../secret.bin", "..\\secret.bin", "{}/secret.bin", "C:\\x", "",
     "\\\\host\\x", "a\0b", "x" * 10000, "missing.bin", ".", "/dev/zero", "good.bin/x"],
)  # fmt: skip
def test_external_data_outside(folder: Path, location: str) -> None:
    path = external(folder, location=location.format(folder.parent))
    with bounded(), pytest.raises(ModelError, match="external data"):
        read_model(path)


def test_external_data_behind_links(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "up").symlink_to(folder.parent)
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    os.mkfifo(folder / "pipe.bin")
    for location in ("link.bin", "up/secret.bin", "loop.bin", "pipe.bin"):
        with bounded(), pytest.raises(ModelError, match="external data|regular file|cannot"):
            read_model(external(folder, location=location))


@pytest.mark.parametrize(
    ("offset", "length", "what"),
    [
        ("0", "577", "range within its 576 bytes"),
        ("1", "576", "range within"),
        ("9223372036854775807", "576", "range within"),
        ("99999999999999999999", "576", "expected bytes"),
        ("-1", "576", "expected bytes"),
        ("0", "-576", "expected bytes"),
        ("zero", "576", "expected bytes"),
        ("0x10", "", "expected bytes"),
        ("576", "", "data for 0"),
        ("577", "", "range within"),
        ("0", "4", "data for 1"),
    ],
)
def test_external_ranges(folder: Path, offset: str, length: str, what: str) -> None:
    with bounded(), pytest.raises(ModelError, match=what):
        read_model(external(folder, location="good.bin", offset=offset, length=length))


def test_external_data_of_a_model_in_memory(folder: Path) -> None:
    with pytest.raises(ModelError, match="given as bytes"):
        read_model(external(folder, location="good.bin").read_bytes())


# -- the graph ---------------------------------------------------------------------------------


def test_circles() -> None:
    refused(network([node("Relu", "y")]), "circle")
    refused(network([node("Relu", "a", "b"), node("Relu", "b", "a"), node("Relu", "x")]), "circle")
    ring = [node("Relu", f"v{i}", f"v{(i + 1) % 5000}") for i in range(5000)]
    refused(network([*ring, node("Relu", "v0")]), "circle")


def test_names() -> None:
    refused(network([node("Relu", "nothing")]), "nothing defines")
    refused(network([node("Relu", "x"), node("Relu", "x")]), "defined once")
    refused(network([node("Relu", "x", "x"), node("Relu", "x")]), "defined once")
    refused(network([node("Relu", "x", "z")]), "output 'y' is defined by nothing")
    refused(network([node("Relu", "-")]), "input 0 is absent")
    refused(network([node("Relu", "", "y")]), "0 inputs; expected 1")
    refused(network([helper.make_node("Relu", ["x"], [])]), "no output")
    long = "n" * (4 * MIB)
    refused(network([node("Relu", long)]), "nothing defines", peak_bytes=64 * MIB)


def test_inputs_and_outputs_twice() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    for field, what in (("input", "stands twice"), ("output", "stands twice")):
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        getattr(changed.graph, field).append(getattr(proto.graph, field)[0])
        refused(changed.SerializeToString(), what)
        del getattr(changed.graph, field)[:]
        refused(changed.SerializeToString(), "output|inputs|nothing defines")


def test_a_million_nodes() -> None:
    each = b"\x0a\x1a" + node("Relu", "x", "y" * 9).SerializeToString()[:26].ljust(26, b"\0")
    data = each * 1_000_000
    proto = b"\x42\x02\x10\x11\x3a" + _varint(len(data)) + data
    with bounded(10, 64 * MIB), pytest.raises(ModelError, match="over 100000 entries 'node'"):
        read_model(proto)


def test_a_hundred_thousand_nodes_take_linear_time() -> None:
    def chain(count: int) -> bytes:
        nodes = [node("Relu", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(count - 1)]
        return network([*nodes, node("Relu", f"v{count - 1}")])

    def seconds(data: bytes) -> float:
        start = time.perf_counter()
        assert len(read_model(data).bind().nodes) > 1000
        return time.perf_counter() - start

    seconds(chain(2_000))
    small, large = seconds(chain(2_000)), seconds(chain(20_000))
    assert large < 40 * small + 0.5


def test_deep_chains_do_not_recurse() -> None:
    depth = 3 * sys.getrecursionlimit()
    nodes = [node("Identity", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(depth)]
    data = network([*nodes, node("Relu", f"v{depth}")])
    assert len(read_model(data).bind().nodes) == 1


# -- shapes and constants ----------------------------------------------------------------------


def shape_of(*extents: int) -> dict[str, Any]:
    return {"s": np.array(extents, np.int64)}


def added(each: onnx.NodeProto, arrays: dict[str, Any], opset: int = 17) -> bytes:
    """A network that adds the constant `k` of a node."""
    cast = node("Cast", "k", "f", to=TensorProto.FLOAT)
    return network([each, cast, node("Add", "x f")], arrays, opset)


@pytest.mark.parametrize(
    "extents",
    [(2**60,), (2**30, 2**30), (2**62, 2**62, 2**62), (2**36,), (2**26,), (-1,), (1,) * 17],
)
def test_constant_of_shape(extents: tuple[int, ...]) -> None:
    refused(added(node("ConstantOfShape", "s", "k"), shape_of(*extents)), "expected")


def test_other_constants_without_end() -> None:
    zero, far = np.int64(0), np.int64(2**62)
    arrays = {"zero": zero, "far": far, "one": np.int64(1)}
    refused(added(node("Range", "zero far one", "k"), arrays), "bytes")
    floats = {"zero": np.float32(0), "far": np.float32(1e38), "one": np.float32(1e-38)}
    refused(added(node("Range", "zero far one", "k"), floats), "bytes")
    floats["one"] = np.float32("nan")
    refused(added(node("Range", "zero far one", "k"), floats), "expected a range")
    column = {"c": np.zeros((2**12, 1), "f4"), **shape_of(1, 2**50)}
    refused(added(node("Expand", "c s", "k"), column), "bytes")
    refused(added(node("Tile", "c s", "k"), column), "bytes")
    wide = {"a": np.zeros((2**14, 1), "f4"), "b": np.zeros((1, 2**14), "f4")}
    for op in ("Add", "Mul", "MatMul"):
        refused(added(node(op, "a b", "k"), wide), "traffic")
    pads = {"c": np.zeros(4, "f4"), "s": np.array([2**61, 2**61])}
    refused(added(node("Pad", "c s", "k"), pads), "bytes")
    huge = {"c": np.zeros((1, 1, 2, 2), "f4"), "t": np.array([1, 1, 1e30, 1e30], "f4")}
    refused(added(node("Resize", "c - t", "k"), huge), "bytes|smaller")


def test_constants_that_double() -> None:
    nodes = [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(60)]
    refused(
        network([*nodes, node("Add", "x c60")], {"c0": np.zeros(4, "f4")}),
        "traffic",
        peak_bytes=128 * MIB,
    )


def test_values_that_double() -> None:
    nodes = [node("Concat", f"{'x' if i == 0 else f'v{i}'} {'x' if i == 0 else f'v{i}'}",
                  f"v{i + 1}", axis=0) for i in range(60)]  # fmt: skip
    refused(network([*nodes, node("Relu", "v60")]), "expected at most 1099511627776 bytes")


def test_many_reductions_of_one_constant() -> None:
    """Little output, much work: what is read counts as well."""
    nodes = [node("ReduceSum", "c", f"k{i}", keepdims=0) for i in range(3000)]
    nodes.append(node("Sum", "x " + " ".join(f"k{i}" for i in range(3000))))
    data = network(nodes, {"c": np.zeros(MIB // 4, "f4")})
    refused(data, "traffic", seconds=5)


def test_much_work_on_constants() -> None:
    tall = {"c": np.zeros((1, 1, 600, 600), "f4"), "w": np.zeros((64, 1, 25, 25), "f4")}
    refused(added(node("Conv", "c w", "k"), tall), "traffic")
    one = {"c": np.zeros((1, 1, 2, 2), "f4")}
    wide = [2**30] * 2
    refused(
        added(node("MaxPool", "c", "k", kernel_shape=wide, pads=[2**30 - 1] * 4), one),
        "traffic|bytes",
    )
    refused(added(node("LRN", "c", "k", size=2**62), one), "size")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strides", [0, 1]),
        ("strides", [-1, 1]),
        ("strides", [2**62, 1]),
        ("strides", [1]),
        ("strides", [1] * 1000),
        ("dilations", [0, 1]),
        ("dilations", [2**62, 1]),
        ("dilations", [2**31 - 1] * 2),
        ("pads", [-1, 0, 0, 0]),
        ("pads", [2**63 - 1] * 4),
        ("pads", [2**31 - 1] * 4),
        ("pads", [0, 0]),
        ("group", 0),
        ("group", -1),
        ("group", 3),
        ("group", 2**62),
        ("kernel_shape", [3, 2]),
        ("kernel_shape", [2**62] * 2),
        ("auto_pad", "SOME"),
        ("auto_pad", b"\xff"),
        ("strides", 1.5),
        ("strides", [1.5, float("nan")]),
    ],
)
def test_attributes_of_windows(name: str, value: Any) -> None:
    weight = {"w": np.zeros((4, 4, 3, 3), "f4")}
    refused(network([node("Conv", "x w", **{name: value})], weight), WINDOW_ERRORS)
    refused(network([node("ConvTranspose", "x w", **{name: value})], weight), WINDOW_ERRORS)
    if name not in ("group",) and value != [3, 2]:
        window = {"kernel_shape": [3, 3], name: value}
        for op in ("MaxPool", "AveragePool"):
            refused(network([node(op, "x", **window)], opset=19), "expected|larger|attribute")


@pytest.mark.parametrize(
    ("each", "arrays"),
    [
        (node("Softmax", "x", axis=4), {}),
        (node("Softmax", "x", axis=-(2**63)), {}),
        (node("Concat", "x x", axis=9), {}),
        (node("Concat", "x x"), {}),
        (node("Transpose", "x", perm=[0, 1, 2]), {}),
        (node("Transpose", "x", perm=[0, 0, 1, 2]), {}),
        (node("Flatten", "x", axis=5), {}),
        (node("Reshape", "x s"), shape_of(3, 3)),
        (node("Reshape", "x s"), shape_of(-1, -1)),
        (node("Reshape", "x s"), shape_of(2**62, 2**62)),
        (node("Reshape", "x s"), {"s": np.zeros(10**5, np.int64)}),
        (node("Reshape", "x s"), {"s": np.array([1.5])}),
        (node("Unsqueeze", "x s"), {"s": np.arange(40)}),
        (node("Squeeze", "x s"), shape_of(1)),
        (node("Slice", "x s s s s"), shape_of(0)),
        (node("Slice", "x s s s"), shape_of(1, 1)),
        (node("Split", "x", "y", axis=7), {}),
        (node("Split", "x s", "y", axis=1), shape_of(5)),
        (node("Split", "x s", "y z", axis=1), shape_of(-4, 8)),
        (node("Expand", "x s"), shape_of(3)),
        (node("Expand", "x s"), shape_of(2**40, 1, 1, 1, 1)),
        (node("Gather", "x s"), shape_of(9)),
        (node("Gather", "x s"), {"s": np.float32(1)}),
        (node("Pad", "x s"), shape_of(1, 1)),
        (node("Pad", "x s"), shape_of(-9, 0, 0, 0, 0, 0, 0, 0)),
        (node("Pad", "x s", mode="reflect"), shape_of(0, 0, 9, 0, 0, 0, 0, 0)),
        (node("ReduceMean", "x", axes=[0, 0]), {}),
        (node("ReduceMean", "x", axes=[2**40]), {}),
        (node("ReduceMean", "x", keepdims=2), {}),
        (node("Clip", "x s"), {"s": np.float32("nan")}),
        (node("Clip", "x s"), {"s": np.zeros(2, "f4")}),
        (node("Resize", "x - s"), {"s": np.array([1, 1, float("nan"), 1], "f4")}),
        (node("Resize", "x - s"), {"s": np.array([1, 1, 0, 1], "f4")}),
        (node("Resize", "x - s"), {"s": np.array([1, 1, -1, 1], "f4")}),
        (node("Resize", "x - - s"), shape_of(1, 4, 0, 8)),
        (node("Resize", "x"), {}),
        (node("Gemm", "x s"), {"s": np.zeros((3, 3), "f4")}),
        (node("MatMul", "x s"), {"s": np.zeros((3, 3), "f4")}),
        (node("MatMul", "x s"), {"s": np.float32(3)}),
        (node("Add", "x s"), {"s": np.zeros(3, "f4")}),
        (node("Add", "x s"), {"s": np.zeros(8, "f8")}),
        (node("Add", "x s"), {"s": np.zeros(8, "i8")}),
        (node("PRelu", "x s"), {"s": np.zeros((2, 1, 4, 8, 8), "f4")}),
        (node("BatchNormalization", "x s s s s"), {"s": np.zeros(3, "f4")}),
        (node("LRN", "x", size=0), {}),
        (node("LRN", "x"), {}),
        (node("Constant", "", "y"), {}),
        (node("Cast", "x"), {}),
    ],
)
def test_operands_that_do_not_fit(each: onnx.NodeProto, arrays: dict[str, Any]) -> None:
    refused(network([each], arrays), "expected|does not|which")


@pytest.mark.parametrize(
    ("each", "arrays"),
    [
        (node("Div", "s t", "k"), {"s": np.array([1]), "t": np.array([0])}),
        (node("Mod", "s t", "k"), {"s": np.array([1]), "t": np.array([0])}),
        (node("Pow", "s t", "k"), {"s": np.array([2]), "t": np.array([-1])}),
        (node("Neg", "s", "k"), {"s": np.array([True])}),
        (node("Sub", "s s", "k"), {"s": np.array([True])}),
        (node("ReduceMax", "s", "k"), {"s": np.zeros(0, "f4")}),
        (node("ReduceMean", "s", "k"), {"s": np.zeros(0, "f4")}),
        (node("Where", "s s s", "k"), {"s": np.zeros(1, "f4")}),
        (node("Not", "s", "k"), {"s": np.zeros(1, "f4")}),
        (node("Equal", "s t", "k"), {"s": np.zeros(1, "f4"), "t": np.zeros(1, "i8")}),
        (node("Constant", "", "k", value_int=1, value_float=1.0), {}),
        (node("Constant", "", "k", value_string="text"), {}),
    ],
)
def test_constants_that_do_not_fit(each: onnx.NodeProto, arrays: dict[str, Any]) -> None:
    refused(added(each, arrays), "expected|do not fit")


def test_messages_stay_short() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.node[0].op_type = "R" * MIB
    proto.graph.node[0].name = "n" * MIB
    with pytest.raises(UnsupportedError) as caught:
        read_model(proto.SerializeToString())
    assert len(str(caught.value)) < 3000


def test_sparse_and_sequence_tensors() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.sparse_initializer.add()
    refused(proto.SerializeToString(), "sparse")
    sequence: Callable[..., Any] = helper.make_tensor_sequence_value_info
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.input[0].CopyFrom(sequence("x", TensorProto.FLOAT, None))
    refused(proto.SerializeToString(), "no tensor")
    segment = numpy_helper.from_array(np.zeros(4, "f4"), "w")
    segment.segment.begin = 0
    proto.graph.initializer.append(segment)
    refused(proto.SerializeToString(), "segments")
