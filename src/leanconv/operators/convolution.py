"""From Conv and ConvTranspose nodes to problems, and from those to kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leanconv.algorithms import ALGORITHMS, select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.packed_bytes import packed_bytes
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Call, Lowered, Packing
from leanconv.graph.ir import Graph, Node
from leanconv.operators.transposed import joined, one_kernel, phases
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target

OPS = ("Conv", "ConvTranspose")


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Whether input and output may both stand in blocks of channels."""
    groups = node.attributes["group"]
    if groups == 1:
        return True
    inputs = graph.types[node.inputs[0]].shape[1] // groups
    outputs = graph.types[node.outputs[0]].shape[1] // groups
    if inputs % block == 0 and outputs % block == 0:
        return True
    if node.op == "ConvTranspose" or block % outputs:
        return False
    span = block // outputs * inputs
    return span in (block, 2 * block) or (span < block and block % span == 0)


def accepts_mixed(node: Node) -> bool:
    """Whether input and output may stand in different formats."""
    return bool(node.attributes["group"] == 1)


def conv_spec(node: Node, graph: Graph) -> ConvSpec:
    """The spec of a Conv node."""
    x, w = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    attributes, rank = node.attributes, len(x.shape) - 2
    return ConvSpec(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[0],
        size=x.shape[2:],
        kernel=w.shape[2:],
        stride=tuple(attributes["strides"]),
        dilation=tuple(attributes["dilations"]),
        pad_begin=tuple(attributes["pads"][:rank]),
        pad_end=tuple(attributes["pads"][rank:]),
        groups=attributes["group"],
        dtype=x.dtype,
        bias=bool(node.input(2)),
        residual=bool(node.input(3)),
        activation=attributes["activation"],
    )


def lower(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    max_error: float | None = None,
    reproducible: bool = False,
    cold: bool = False,
    way: str | None = None,
) -> Lowered:
    """Lower a Conv or ConvTranspose node to one call, or one for each phase of the output.

    Args:
        node, graph, formats, target: as the kernels of other operations are given.
        max_error: relative error accepted of this layer; the default of one layer if None.
        reproducible: whether the batch must not change the bits of an image.
        cold: whether weights come from memory in each run.
        way: the algorithm to take, with its parameters; None leaves it to the model.
    """
    x_name, y_name = node.inputs[0], node.outputs[0]
    pieces = problems(node, graph, formats, max_error, cold)
    channels = {
        role: graph.constants[node.inputs[index]]
        for role, index in (("bias", 2), ("slope", 4))
        if node.input(index)
    }
    calls: list[Call] = []
    packings: list[Packing] = []
    temporaries: dict[str, int] = {}
    names: list[str] = []
    for number, (problem, chosen, weights) in enumerate(_joined(pieces, target, way, reproducible)):
        suffix = f".{number}" if len(pieces) > 1 else ""
        values = {"x": x_name, "y": y_name, "residual": node.input(3)}
        packed = packed_bytes(problem, chosen)
        values.update({role: f"{y_name}/{role}{suffix}" for role in packed})
        packings.append(_packing(chosen, packed, values, weights, channels))
        for role, size in chosen.temporaries.items():
            values[role] = f"{y_name}/{role}{suffix}"
            temporaries[values[role]] = size
        for use in chosen.kernels:
            # A tile reads its residual just before it writes the same elements.
            residual = use.roles.index("residual") if "residual" in use.roles else None
            in_place = () if residual is None or use.roles[-1] != "y" else (residual,)
            calls.append(Call(use.kernel, tuple(values[r] for r in use.roles), in_place))
        names.append(chosen.algorithm)
    return Lowered(tuple(calls), {}, temporaries, names[0], packings=tuple(packings))


def _joined(
    pieces: Sequence[tuple[Problem, np.ndarray]],
    target: Target,
    way: str | None,
    reproducible: bool,
) -> list[tuple[Problem, Candidate, list[np.ndarray]]]:
    """How each piece is computed, with its weights; phases of one kernel are one piece."""
    found = _chosen([problem for problem, _ in pieces], target, way, reproducible)
    result = []
    for numbers in one_kernel(found):
        problem, candidate = found[numbers[0]]
        if len(numbers) > 1:
            candidate = joined([found[number] for number in numbers])
        result.append((problem, candidate, [pieces[number][1] for number in numbers]))
    return result


def _chosen(
    problems: Sequence[Problem], target: Target, way: str | None, reproducible: bool
) -> list[tuple[Problem, Candidate]]:
    """Each piece of a node with how it is computed.

    Of phases with one window, those beside the first are written with an offset, which direct
    convolution alone can: all of them are computed like that then, with one kernel.
    """
    offset = {problem.window for problem in problems if problem.y_offset}
    return [
        (
            p,
            select.choose(
                p, target, "direct" if way is None and p.window in offset else way, reproducible
            ),
        )
        for p in problems
    ]


def _packing(
    chosen: Candidate,
    sizes: Mapping[str, int],
    values: Mapping[str, str],
    weights: Sequence[np.ndarray],
    channels: Mapping[str, np.ndarray],
) -> Packing:
    """The constants of one candidate, to be packed when there is a place for them.

    Its weights are one array, or those of several phases, which it takes stacked.
    """

    def given() -> np.ndarray:
        return weights[0] if len(weights) == 1 else np.stack(weights)

    def make() -> dict[str, np.ndarray]:
        packed = chosen.pack(given(), channels)
        return {values[role]: array for role, array in packed.items()}

    def pieces() -> Iterator[tuple[str, np.ndarray]]:
        assert chosen.stream is not None
        for role, array in chosen.stream(given(), channels):
            yield values[role], array

    stream = None if chosen.stream is None else pieces
    return Packing({values[role]: size for role, size in sizes.items()}, make, stream)


def problems(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    max_error: float | None,
    cold: bool = False,
) -> list[tuple[Problem, np.ndarray]]:
    """The convolutions that a node consists of, each with its weights."""
    x_name, y_name = node.inputs[0], node.outputs[0]
    x = Access.of_format(graph.types[x_name].shape, formats[x_name])
    y = Access.of_format(graph.types[y_name].shape, formats[y_name])
    w = graph.constants[node.inputs[1]]
    if node.op == "Conv":
        found = [(Problem.of(conv_spec(node, graph), x, y, max_error), w)]
    else:
        found = phases(node, graph, x, y, w, max_error)
    return [(replace(problem, cold=cold), weights) for problem, weights in found]


@dataclass(frozen=True)
class NodeChoice:
    """One way to compute a node.

    Attributes:
        name: as `lower` is asked for it; None leaves the choice to it.
        cycles: estimated cycles of one core.
        error: expected relative error in the max norm.
    """

    name: str | None
    cycles: float
    error: float


def choices(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    max_error: float | None = None,
    reproducible: bool = False,
    every: bool = True,
    cold: bool = False,
) -> list[NodeChoice]:
    """The ways to compute a Conv or ConvTranspose node; the first is what `lower` takes by itself.

    Args:
        node, graph, formats, target, max_error, reproducible, cold: as of `lower`.
        every: whether parameters of the algorithms are varied, too.
    """
    pieces = problems(node, graph, formats, max_error, cold)
    costs = {algorithm.name: algorithm.cost for algorithm in ALGORITHMS}
    chosen = _chosen([problem for problem, _ in pieces], target, None, reproducible)
    first = [candidate for _, candidate in chosen]
    cycles = sum(costs[c.algorithm](problem, target) for problem, c in chosen)
    error = max(candidate.error for candidate in first)
    if len(pieces) > 1:
        return [NodeChoice(None, cycles, error)]
    found = {first[0].arithmetic: NodeChoice(first[0].arithmetic, cycles, error)}
    if not reproducible:
        problem = pieces[0][0]
        if every:
            others = [(o.cycles, o.name, c) for o, c in select.alternatives(problem, target)]
        else:
            others = [
                (costs[c.algorithm](problem, target), c.arithmetic, c)
                for c in select.ranked(problem, target)
            ]
        for cost, name, candidate in others:
            found.setdefault(name, NodeChoice(name, cost, candidate.error))
    return list(found.values())


def named_choice(
    node: Node,
    graph: Graph,
    formats: Mapping[str, Format],
    target: Target,
    max_error: float | None,
    name: str,
    reproducible: bool = False,
    cold: bool = False,
) -> NodeChoice:
    """What an algorithm that is asked for costs a node.

    Args:
        node, graph, formats, target, max_error, reproducible, cold: as of `lower`.
        name: the algorithm, with parameters or without.

    Raises:
        SpecError: the algorithm does not exist, or cannot compute the node.
    """
    costs = {algorithm.name: algorithm.cost for algorithm in ALGORITHMS}
    cycles = error = 0.0
    for problem, _ in problems(node, graph, formats, max_error, cold):
        candidate = select.named(name, problem, target, reproducible)
        cycles += costs[candidate.algorithm](problem, target)
        error = max(error, candidate.error)
    return NodeChoice(name, cycles, error)


def rejections(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> dict[str, str]:
    """Why algorithms do not compute a node, or are not considered for it, by name."""
    return select.rejections(problems(node, graph, formats, None)[0][0], target)
