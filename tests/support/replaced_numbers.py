"""Small models of all operators, and one number of one of them replaced by a huge one.

The models are ONNX's own cases of single nodes, with what cannot be computed at run time in the
file, and some of what these lack.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from conformance.suite import cases, with_constants
from support.damaged_models import MODELS
from support.hostile import node
from support.onnx_models import model

_MOST_BYTES = 1500  # of a model: most of ONNX's cases have less
_DOMAIN = "com.microsoft"


class Place(NamedTuple):
    """A number of a model.

    Attributes:
        name: for people.
        number: that is there.
        put: has another one there; it raises OverflowError, ValueError or TypeError where the
            field cannot hold it.
    """

    name: str
    number: float
    put: Callable[[Any], None]


@cache
def small_models() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """All models, with their names."""
    found = {f"model {number}": each for number, each in enumerate(MODELS)}
    found |= {f"own {number}": each for number, each in enumerate(_others())}
    for name, case in cases().items():
        if case.kind not in ("node", "simple"):
            continue
        proto, sets = case.load()
        names = [each.name for each in proto.graph.input]
        given = dict(zip(names, sets[0][0], strict=False)) if sets else {}
        made, left = with_constants(proto, given)
        if made.ByteSize() <= _MOST_BYTES:
            found[name] = made
        sizes = {n: x for n, x in left.items() if _may_be_sizes(x)}
        held = _with_initializers(made, sizes)
        if sizes and held.ByteSize() <= _MOST_BYTES:
            found[f"{name} held"] = held
    return tuple(found.items())


def _may_be_sizes(array: Any) -> bool:
    """Whether an input that may be data is small, and no picture: a size, an index, a limit."""
    return isinstance(array, np.ndarray) and (array.ndim == 0 or array.dtype.kind in "iub")


def _with_initializers(proto: onnx.ModelProto, given: dict[str, Any]) -> onnx.ModelProto:
    """The model with some of its inputs in the file, and one that nothing reads if all are."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    left = [value for value in made.graph.input if value.name not in given]
    del made.graph.input[:]
    unread = helper.make_tensor_value_info("unread", onnx.TensorProto.FLOAT, [1])
    made.graph.input.extend(left or [unread])
    held = (numpy_helper.from_array(np.asarray(x), name) for name, x in given.items())
    made.graph.initializer.extend(held)
    return made


def _others() -> Iterator[onnx.ModelProto]:
    """Products with packed weights, and pairs of nodes that are computed together."""
    ones = np.ones((4, 4), "f4")
    quantised = {"w": np.ones((4, 4), "i1"), "s": np.ones((2, 4), "f4")}
    dequantised = node("DequantizeLinear", "w s", "d", axis=0, block_size=2)
    yield model([dequantised, node("MatMul", "x d")], {"x": (3, 4)}, ["y"], quantised, 21)
    yield model([dequantised, node("Gemm", "x d", transB=1)], {"x": (3, 4)}, ["y"], quantised, 21)
    whole = node("Cast", "x", "i", to=7)
    yield model(
        [whole, node("DequantizeLinear", "w s", "d", axis=1, block_size=2), node("Gather", "d i")],
        {"x": (3,)},
        ["y"],
        {"w": np.ones((4, 4), "u1"), "s": np.ones((4, 2), "f4")},
        21,
    )
    packed = {"w": np.ones((4, 2, 8), "u1"), "s": np.ones(8, "f4")}
    sizes = {"K": 32, "N": 4, "bits": 4, "block_size": 16}
    yield _of_microsoft([_own("MatMulNBits", "x w s", **sizes)], (3, 32), packed)
    blocked = {"w": np.ones((4, 16), "u1"), "s": np.ones((4, 2), "f4")}
    gathered = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    yield _of_microsoft([whole, _own("GatherBlockQuantized", "w i s", **gathered)], (3,), blocked)
    conv = {"w": np.ones((4, 4, 3, 3), "f4")}
    image = {"x": (1, 4, 8, 8)}
    window = {"pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1]}
    yield model([node("Conv", "x w", **window)], image, ["y"], conv)
    yield model([node("ConvTranspose", "x w", output_padding=[0, 0], **window)], image, ["y"], conv)
    yield model(
        [node("Pad", "x p", "q"), node("Conv", "q w")],
        image,
        ["y"],
        {**conv, "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        18,
    )
    for op in ("MaxPool", "AveragePool", "LpPool"):
        yield model([node(op, "x", kernel_shape=[3, 2], **window)], image, ["y"], None, 22)
    for mode in ("nearest", "linear", "cubic"):
        wanted = {"n": np.array([1, 4, 16, 12])}
        yield model([node("Resize", "x - - n", mode=mode)], image, ["y"], wanted, 18)
        scales = {"s": np.array([1, 1, 2, 1.5], "f4")}
        yield model([node("Resize", "x - s", mode=mode)], image, ["y"], scales, 18)
    yield model([node("NonZero", "x")], image, ["y"])
    yield model(
        [node("Relu", "x", "r"), node("Tile", "r n", "t"), node("NonZero", "t")],
        image,
        ["y"],
        {"n": np.array([1, 2, 1, 3])},
    )
    yield model(
        [node("ConstantOfShape", "n", "c"), node("Add", "x c")],
        {"x": (2, 4)},
        ["y"],
        {"n": np.array([2, 4])},
    )
    yield model(
        [node("ConstantOfShape", "n", "c"), node("MatMul", "x c")],
        {"x": (2, 4)},
        ["y"],
        {"n": np.array([4, 4])},
    )
    yield model([node("MatMul", "x w")], {"x": (4, 4)}, ["y"], {"w": ones})


def _own(op: str, inputs: str, **attributes: int) -> onnx.NodeProto:
    return node(op, inputs, domain=_DOMAIN, **attributes)


def _of_microsoft(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], held: dict[str, Any]
) -> onnx.ModelProto:
    made = model(nodes, {"x": shape}, ["y"], held)
    made.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return made


def places(proto: onnx.ModelProto) -> list[Place]:
    """All numbers of a model: of attributes, shapes and initializers."""
    return list(_of_graph(proto.graph))


def _of_graph(graph: onnx.GraphProto) -> Iterator[Place]:
    for value in (*graph.input, *graph.output):
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                yield _field(f"{value.name}[{number}]", dim, "dim_value")
    for tensor in graph.initializer:
        yield from _of_tensor(tensor)
    for held in graph.sparse_initializer:
        yield from _of_sparse(held)
    for each in graph.node:
        for attribute in each.attribute:
            yield from _of_attribute(f"{each.op_type}.{attribute.name}", attribute)


def _field(name: str, message: Any, field: str) -> Place:
    return Place(name, getattr(message, field), lambda new: setattr(message, field, new))


def _items(name: str, items: Any) -> Iterator[Place]:
    for index, number in enumerate(items):

        def put(new: Any, index: int = index) -> None:
            items[index] = new

        yield Place(f"{name}[{index}]", number, put)


def _of_attribute(name: str, attribute: AttributeProto) -> Iterator[Place]:
    if attribute.type == AttributeProto.INT:
        yield _field(name, attribute, "i")
    elif attribute.type == AttributeProto.FLOAT:
        yield _field(name, attribute, "f")
    elif attribute.type == AttributeProto.TENSOR:
        yield from _of_tensor(attribute.t)
    elif attribute.type == AttributeProto.SPARSE_TENSOR:
        yield from _of_sparse(attribute.sparse_tensor)
    elif attribute.type == AttributeProto.GRAPH:
        yield from _of_graph(attribute.g)
    yield from _items(name, attribute.ints)
    yield from _items(name, attribute.floats)


def _of_sparse(held: onnx.SparseTensorProto) -> Iterator[Place]:
    yield from _items(f"{held.values.name} sparse dims", held.dims)
    yield from _of_tensor(held.values)
    yield from _of_tensor(held.indices)


def _of_tensor(tensor: onnx.TensorProto) -> Iterator[Place]:
    yield from _items(f"{tensor.name} dims", tensor.dims)
    try:
        array = numpy_helper.to_array(tensor).copy()
    except (TypeError, ValueError):
        return
    if array.dtype.kind not in "iuf" or not array.size:
        return
    numbers = array.reshape(-1)
    for index in range(min(16, numbers.size)):

        def put(new: Any, index: int = index) -> None:
            info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
            if info and not info.min <= new <= info.max:
                raise OverflowError
            numbers[index] = new
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

        yield Place(f"{tensor.name}[{index}]", numbers[index].item(), put)


def replacement(choose: random.Random, old: float) -> float:
    """A power of two, one more or less than it, or its negative."""
    power = choose.randrange(64)
    if isinstance(old, float):
        return choose.choice([1, -1]) * 2.0 ** choose.choice([power, -power])
    return choose.choice([1, 1, -1]) * ((1 << power) + choose.choice([0, 0, -1, 1]))


def replaced(choose: random.Random) -> tuple[str, bytes, bytes]:
    """What was done, a model, and the same with one number replaced."""
    while True:
        name, whole = choose.choice(small_models())
        changed = onnx.ModelProto()
        changed.CopyFrom(whole)
        found = places(changed)
        if not found:
            continue
        place = choose.choice(found)
        new = replacement(choose, place.number)
        try:
            place.put(new)
        except (OverflowError, ValueError, TypeError):  # the field cannot hold it
            continue
        done = f"{name}: {place.name} = {new}"
        return done, whole.SerializeToString(), changed.SerializeToString()
