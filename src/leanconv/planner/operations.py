"""What can be asked about any node: the ways to compute it, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leanconv import kernels
from leanconv.algorithms import select
from leanconv.codegen.lowered import Lowered
from leanconv.dtypes import ITEMSIZE
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.operators import conv_chain, convolution
from leanconv.spec import Format
from leanconv.target import Target

# Operations that can be computed in several ways.
SEVERAL = (*convolution.OPS, *conv_chain.OPS)

# The error of a network that is aimed at if the user does not say, and one layer's share of it.
NETWORK_ERROR = {"float32": 1e-5, "float64": 1e-5 * 2.0**-29}
LAYER_SHARE = 0.12

_CALL_CYCLES = 1500.0  # begin and end of a stage
_BYTES_PER_CYCLE = 8.0  # that one core moves in operations that mostly move
_FLOPS_PER_CYCLE = 8.0  # that they do beside it


@dataclass(frozen=True)
class Accuracy:
    """What is asked of the arithmetic.

    Attributes:
        layer_error: relative error accepted of one layer.
        reproducible: whether the batch must not change the bits of an image.
        cold: whether weights come from memory in each run, because caches do not hold them all.
    """

    layer_error: float
    reproducible: bool = False
    cold: bool = False

    def of_network(self, graph: Graph, target: Target) -> Accuracy:
        """The same for a network whose constants are known: whether they are cold."""
        weights = sum(array.nbytes for array in graph.constants.values())
        return replace(self, cold=weights > max(target.l3_bytes, target.l2_bytes) // 2)


@dataclass(frozen=True)
class Way:
    """One way to compute a node between given formats.

    Attributes:
        name: as `lower` is asked for it; None where there is only one.
        cycles: estimated cycles of one core.
        error: expected relative error in the max norm that it adds; 0 where it only moves.
    """

    name: str | None
    cycles: float
    error: float


def ways(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    accuracy: Accuracy,
    every: bool = True,
) -> list[Way]:
    """The ways to compute a node; the first is the one that is taken where nothing is asked.

    Args:
        node, graph, formats, target: as of `lower`.
        accuracy: what is asked of the arithmetic.
        every: whether parameters of an algorithm are varied, too.
    """
    asked = (accuracy.layer_error, accuracy.reproducible)
    if node.op in convolution.OPS:
        found = convolution.choices(node, graph, formats, target, *asked, every, accuracy.cold)
        return [Way(choice.name, choice.cycles, choice.error) for choice in found]
    if node.op in conv_chain.OPS:
        chains = conv_chain.choices(node, graph, formats, target, *asked)
        return [Way(chain.name, chain.cycles, chain.error) for chain in chains]
    return [Way(None, _moving_cycles(node, graph), 0.0)]


def first_way(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    accuracy: Accuracy,
) -> str | None:
    """The name of the first of `ways`, found without the others.

    Args:
        node: one of the operations that can be computed in several ways.
        graph, formats, target, accuracy: as of `lower`.
    """
    asked = (accuracy.layer_error, accuracy.reproducible)
    if node.op not in convolution.OPS:
        return conv_chain.choices(node, graph, formats, target, *asked)[0].name
    pieces = convolution.problems(node, graph, formats, accuracy.layer_error, accuracy.cold)
    if len(pieces) > 1:
        return None
    return select.choose(pieces[0][0], target, None, accuracy.reproducible).arithmetic


def named_way(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    accuracy: Accuracy,
    name: str | None,
) -> Way:
    """A way that `ways` does not list, because it is taken on request only.

    Raises:
        SpecError: the node cannot be computed that way.
    """
    if node.op not in convolution.OPS or name is None:
        raise SpecError(
            f"node {node.name or node.outputs[0]!r} ({node.op}) has no way {name!r}; expected one "
            f"of {', '.join(str(w.name) for w in ways(node, graph, formats, target, accuracy))}"
        )
    asked = (accuracy.layer_error, name, accuracy.reproducible, accuracy.cold)
    found = convolution.named_choice(node, graph, formats, target, *asked)
    return Way(found.name, found.cycles, found.error)


def lower(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    accuracy: Accuracy,
    way: str | None = None,
) -> Lowered:
    """Make the kernels of a node.

    Args:
        node: an operation in normal form.
        graph: types and constants of its values.
        formats: how each of its values stands in memory.
        target: the machine.
        accuracy: what is asked of the arithmetic.
        way: the name of one of `ways`, None for the first.

    Raises:
        UnsupportedError: there is no kernel for the operation.
        SpecError: there is no such way.
    """
    if node.op not in SEVERAL:
        return kernels.lower(node, graph, formats, target)
    asked = (accuracy.layer_error, accuracy.reproducible)
    if node.op in convolution.OPS:
        return convolution.lower(node, graph, formats, target, *asked, accuracy.cold, way=way)
    return conv_chain.lower(node, graph, formats, target, *asked, select=way)


def rejections(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> dict[str, str]:
    """Why the algorithms that do not compute a node do not, by algorithm."""
    if node.op not in convolution.OPS:
        return {}
    return convolution.rejections(node, graph, formats, target)


def packed_inputs(node: Node) -> tuple[str, ...]:
    """The constants of a node whose values decide nothing: they are only packed."""
    if node.op in conv_chain.OPS:
        return node.inputs[2:]
    if node.op in convolution.OPS:
        return tuple(node.input(number) for number in (1, 2, 4))
    return ()


def _moving_cycles(node: Node, graph: Graph) -> float:
    """Estimated cycles of an operation that is no convolution."""
    names = (*(name for name in node.inputs if name), *node.outputs)
    item = max(ITEMSIZE.get(graph.types[name].dtype, 4) for name in names)
    elements = sum(graph.types[name].elements for name in names)
    inner = 1
    if node.op in ("MatMul", "Gemm"):
        inner = graph.types[node.inputs[0]].shape[-1]
    elif node.op in ("MaxPool", "AveragePool"):
        kernel = node.attributes.get("kernel_shape", ())
        for extent in kernel:
            inner *= extent
    out = graph.types[node.outputs[0]].elements
    return _CALL_CYCLES + elements * item / _BYTES_PER_CYCLE + out * inner / _FLOPS_PER_CYCLE
