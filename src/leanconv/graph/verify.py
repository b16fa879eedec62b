"""The checks that hold for every graph, whoever made it."""

from __future__ import annotations

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.halves import in_float32, stored_half
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS, check_dtypes, infer_node, label
from leanconv.graph.ops.base import SYMBOLIC_DTYPES
from leanconv.graph.regions import Region, region_of, regions_of
from leanconv.types import as_dtype
from leanconv.units import counted, shape_text


def verify(graph: Graph) -> Graph:
    """Check a graph in normal form and return it.

    Every value is defined once and before its use, every type is what the operation gives and
    takes, and every output exists; the same holds for the graphs that nodes hold.

    Raises:
        ModelError: the first rule that is broken, naming the node or value.
        UnsupportedError: an operation does not compute on what one of its inputs holds.
    """
    defined: set[str] = set()
    for name in (*graph.inputs, *graph.constants):
        _define(name, defined, graph)
    for name, constant in graph.constants.items():
        kind = graph.types[name]
        symbolic = constant.dtype == object and kind.dtype in SYMBOLIC_DTYPES
        held = TensorType(constant.shape, kind.dtype if symbolic else as_dtype(constant.dtype))
        if held != kind:
            raise ModelError(f"constant {name!r} is {held}; expected {kind}, its type")
    for node in graph.nodes:
        missing = [name for name in node.inputs if name and name not in defined]
        if missing:
            raise ModelError(
                f"{label(node)} reads {missing[0]!r}, which nothing before it defines; expected "
                "nodes in an order in which they can run"
            )
        _check_outputs(node, defined, graph)
        region = region_of(node)
        if region is not None:
            _check_region(node, region)
    lost = [name for name in graph.outputs if name not in defined]
    if lost:
        raise ModelError(f"output {lost[0]!r} is defined by nothing; expected a node that does")
    return graph


def check_flowing(graph: Graph, *, empty_outputs: bool = True) -> Graph:
    """Return the graph if everything in it can be planned.

    Args:
        graph: after the passes.
        empty_outputs: whether outputs may have no elements.

    Raises:
        UnsupportedError: a node reads a value without elements, or a BatchNormalization is left,
            which only happens when folding would make many times the file's constants.
    """
    names = [name for node in graph.nodes for name in (*node.outputs, *node.inputs) if name]
    for name in dict.fromkeys((*names, *(() if empty_outputs else graph.outputs))):
        if not graph.types[name].elements:
            raise UnsupportedError(
                f"the value {name!r} has the shape {shape_text(graph.types[name].shape)}, without "
                "elements; expected extents of at least 1; bind a larger input"
            )
    for region in regions_of(graph):
        check_flowing(region.graph, empty_outputs=False)
    for node in graph.nodes:
        if node.op == "BatchNormalization":
            raise UnsupportedError(
                f"{label(node)} cannot be folded: with the others it would need many times the "
                "bytes that the file's constants have; expected parameters of its own"
            )
    return graph


def _define(name: str, defined: set[str], graph: Graph) -> None:
    if not name or name in defined:
        raise ModelError(f"value {name!r} is defined twice or has no name; expected each once")
    if name not in graph.types:
        raise ModelError(f"value {name!r} has no type; expected one in the graph's types")
    defined.add(name)


def _check_outputs(node: Node, defined: set[str], graph: Graph) -> None:
    """Check the types of a node's outputs by its operation, and define them."""
    halves = node.op in OPS and stored_half(node, graph)
    types = in_float32(graph).types if halves else graph.types
    found = infer_node(node, types)
    try:
        check_dtypes(node.op, [types[name] if name else None for name in node.inputs])
    except UnsupportedError as error:
        raise UnsupportedError(f"{label(node)}: {error}") from error
    if len(found) != len(node.outputs):
        raise ModelError(
            f"{label(node)} has {counted(len(node.outputs), 'output')}; expected {len(found)}"
        )
    for name, kind in zip(node.outputs, found, strict=True):
        _define(name, defined, graph)
        if kind != types[name]:
            raise ModelError(
                f"{label(node)} gives {kind}; expected {graph.types[name]}, the type of its output "
                f"{name!r}"
            )


def _check_region(node: Node, region: Region) -> None:
    """Check the graph that a node holds by itself: it reads its inputs and constants alone."""
    try:
        verify(region.graph)
    except LeanConvError as error:
        raise type(error)(f"{label(node)}, its body: {error}") from error
