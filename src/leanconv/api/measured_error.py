"""Plans whose error is measured on samples, and what each layer adds to it.

The stated error of a network is an estimate, as nobody knows without data how much the error of a
layer grows on its way to the outputs. Here it is measured. A sample is run through the network in
float64, so that every value between layers is known. Then each layer runs by itself, as it is
planned, on these values rounded to float32: what it gives beside float64 is its own error. That is
added to the layer's output in the float64 network, and the change of the network's outputs is what
the layer adds (to first order the layers' errors pass independently of each other).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import InputSpec, Shape, refuse_unsound, validated_input
from leanconv.errors import BudgetError, InputError, shown
from leanconv.graph.edit import frozen, node_like
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.network_inputs import is_small
from leanconv.graph.ops import OPS
from leanconv.graph.ops.pointwise import inner_nodes, joined, terms_of
from leanconv.graph.regions import with_regions
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.decisions import Decision
from leanconv.planner.error_growth import closeness
from leanconv.planner.lowered_graph import OwnedGraph
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.plan_file import PlanFile
from leanconv.progress import steps
from leanconv.records import dataclass, replace
from leanconv.runtime.memory import Outputs
from leanconv.types import FLOAT32, FLOAT64, DType
from leanconv.units import error_text

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], dict[str, np.ndarray]]
_HARDER = 0.5  # what a plan may err by, over what the one before was expected to
_MOST_PLANS = 12


@dataclass(frozen=True)
class LayerError:
    """A layer's part of the error of the outputs, measured on samples.

    Attributes:
        name, algorithm: of the layer; `output` is the value that it defines.
        own: its largest error over its largest value, on exact inputs.
        stated: the same error as its algorithm states it.
        passed: its part of the relative error of the outputs.
        expected: the estimate of that part.
    """

    name: str
    output: str
    algorithm: str
    own: float
    stated: float
    passed: float
    expected: float


def relative_error(found: Arrays, exact: Arrays) -> float:
    """The largest error of an output over the output's largest value; NaN where there is one."""
    errors = [0.0]
    for name, given in exact.items():
        values = given.astype(np.float64)  # integers would wrap around
        largest = float(np.abs(values).max(initial=0.0))
        difference = float(np.abs(found[name] - values).max(initial=0.0))
        errors.append(difference / largest if largest else difference)
    return float(np.max(errors))


class Measurements:
    """A network in float64 beside its plans in float32, on samples of one shape.

    Args:
        backend: of the network in float32.
        exact: of the same network in float64.
        samples: arrays by the inputs' names.
    """

    def __init__(self, backend: CpuBackend, exact: CpuBackend, samples: Sequence[Arrays]) -> None:
        self._backend = backend
        self._shapes: tuple[Shape, ...] = tuple(
            samples[0][i.name].shape for i in backend.model.inputs
        )
        known = _values_of_small(backend, samples)
        self.graph = backend.decided_graph(self._shapes, known)
        self._samples = samples
        for name in backend.deciding.among(self._shapes, known):
            if any(not np.array_equal(sample[name], known[name]) for sample in samples):
                raise InputError(
                    f"samples give several values of {name!r}, which decides what is computed; "
                    "expected one: a plan is made for one"
                )
        run = self._runner(exact.decided_graph(self._shapes, known), FLOAT64)
        self._exact = [run(_double(sample)) for sample in samples]
        for number, outputs in enumerate(self._exact, 1):
            for name, array in outputs.items():
                if not np.isfinite(array).all():
                    raise InputError(
                        f"output {shown(name)!r} has NaN or infinite numbers in float64 on sample "
                        f"{number} of {len(samples)}; expected finite ones: look whether the "
                        "samples are as the network expects them"
                    )

    def compiled(self, planner: Planner, limit: int | None) -> CompiledNetwork:
        """A plan of the network, ready to run."""
        return CompiledNetwork(OwnedGraph(self.graph), planner, limit)

    def planner(
        self, max_error: float | None = None, growths: Mapping[str, float] | None = None
    ) -> Planner:
        """A planner of plans whose layers may err as much as without a `max_error`."""
        backend = self._backend
        accuracy = backend.accuracy.within(None, backend.dtype)
        given = backend.target, backend.threads, accuracy.of_network(self.graph, backend.target)
        return Planner(self.graph, *given, max_error, growths or {})

    def error(self, network: CompiledNetwork) -> float:
        """The largest relative error of a plan on the samples."""
        run = _run_of(network, self.graph)
        pairs = zip(self._samples, self._exact, strict=True)
        return float(np.max([relative_error(run(sample), exact) for sample, exact in pairs]))

    def layers(self, plan: NetworkPlan) -> list[LayerError]:
        """Measure the error that each layer adds, in the order of nodes; no block may be merged."""
        nodes, costs = self.graph.nodes, plan.node_costs
        double = _in_double(self.graph)
        decisions = [_apart_decision(cost.decision) for cost in costs]
        alone = self._runner(_apart(self.graph), FLOAT32, decisions)
        exactly = self._runner(_apart(double), FLOAT64)
        every = tuple(name for node in nodes for name in node.outputs)
        values_of = self._runner(replace(double, outputs=every), FLOAT64)
        perturbed = _perturbed(double)
        run = self._runner(perturbed, FLOAT64)
        own, passed = [0.0] * len(nodes), [0.0] * len(nodes)
        zeros = np.zeros(max((kind.elements for kind in double.types.values()), default=1))
        for sample in self._samples:
            given = _double(sample)
            values = {**given, **values_of(given)}
            rounded = {
                name: values[name[len(_IN) :]].astype(kind.dtype)
                for name, kind in _apart(self.graph).types.items()
                if name.startswith(_IN)
            }
            found = alone(rounded)
            truth = exactly(_double(rounded))
            none = {
                name: zeros[: kind.elements].reshape(kind.shape)
                for name, kind in perturbed.types.items()
                if name.startswith(_ADD)
            }
            outputs = {name: values[name] for name in self.graph.outputs}
            for number in steps("measuring layers", range(len(nodes)), len(nodes)):
                if not costs[number].error:
                    continue
                results = [name for name in nodes[number].outputs if _ADD + name in none]
                exact = {name: truth[name] for name in results}
                own[number] = max(own[number], relative_error(found, exact))
                changes = {_ADD + name: found[name] - exact[name] for name in results}
                changed = run({**given, **none, **changes})
                passed[number] = max(passed[number], relative_error(changed, outputs))
        rows = zip(nodes, costs, own, passed, strict=True)
        return [
            LayerError(
                node.name or node.key,
                node.key,
                cost.algorithm,
                mine,
                cost.error,
                added,
                cost.passed_error,
            )
            for node, cost, mine, added in rows
            if cost.error
        ]

    def _runner(
        self, graph: Graph, dtype: DType, decisions: Sequence[Decision] | None = None
    ) -> Run:
        accuracy = Accuracy().within(None, dtype).of_network(graph, self._backend.target)
        planner = Planner(graph, self._backend.target, self._backend.threads, accuracy)
        return _run_of(CompiledNetwork(OwnedGraph(graph), planner, decisions=decisions), graph)


def measured_plan(
    measuring: Measurements, max_error: float | None, memory_limit: int | None
) -> PlanFile:
    """The first of ever more accurate plans that keeps an error on the samples; any if None.

    Which plans are tried does not depend on `max_error`, so that the least one that works is known
    where it is refused: the first is the plan without a `max_error`; for each next one the error
    that is expected, by what the layers of the last plan were measured to add, is halved; the last
    one is the most accurate that there is.

    Raises:
        BudgetError: none of them does; `smallest_error` is the least that works.
        InputError: the outputs are too large for float32.
    """
    tried: list[float] = []
    for network in _plans(measuring, memory_limit):
        error = measuring.error(network)
        if not np.isfinite(error):
            raise InputError(
                "outputs on the samples are finite in float64 and not in float32; expected numbers "
                "that float32 holds: give smaller ones, or dtype='float64' without samples"
            )
        tried.append(error)
        if max_error is None or error <= max_error:
            plan = network.plan.file()
            return replace(plan, max_error=max_error, predicted_error=error, measured_error=error)
    least = min(tried)
    assert max_error is not None
    raise BudgetError(
        f"max_error is {max_error:.3g}; of {len(tried)} plans the most accurate one errs by "
        f"{least:.3g} on the samples; give max_error={error_text(least)} or more, or "
        "dtype='float64'",
        0,
        least,
    )


def _plans(measuring: Measurements, memory_limit: int | None) -> Iterator[CompiledNetwork]:
    network = measuring.compiled(measuring.planner(), memory_limit)
    yield network
    growths: dict[str, float] = {}
    seen = [_choices(network)]
    expected = 0.0
    for _ in range(_MOST_PLANS):
        if not network.plan.merged:
            for layer in measuring.layers(network.plan):
                stated = layer.stated * closeness(layer.algorithm)
                growths[layer.output] = max(layer.passed / stated, 1e-6)
            now = measuring.planner(1.0, growths).unmerged.chosen(network.plan.decisions)
            expected = float(np.sqrt(sum(cost.passed_error**2 for cost in now)))
        last = False
        try:
            planner = measuring.planner(expected * _HARDER, growths)
            network = measuring.compiled(planner, memory_limit)
        except BudgetError as error:
            if error.smallest_error is None:
                return
            planner, last = measuring.planner(error.smallest_error, growths), True
            network = measuring.compiled(planner, memory_limit)
        if _choices(network) not in seen:
            seen.append(_choices(network))
            yield network
        if last:
            return


def _choices(network: CompiledNetwork) -> list[tuple[str, str]]:
    decisions = (cost.decision for cost in network.plan.node_costs)
    return [(str(decision.choice), str(decision.writes)) for decision in decisions]


def checked_samples(samples: Any, inputs: Sequence[InputSpec]) -> list[dict[str, np.ndarray]]:
    """Samples as arrays by the inputs' names: one or several, all of one shape.

    Args:
        samples: an array, arrays by name, or a sequence of either.
        inputs: of the network.

    Raises:
        InputError: samples do not fit the network, or have NaN or infinity.
    """
    several = list(samples) if isinstance(samples, list | tuple) else [samples]
    names = [spec.name for spec in inputs]
    found = []
    for sample in several:
        arrays = sample if isinstance(sample, Mapping) else {names[0]: sample}
        if set(arrays) != set(names):
            given = ", ".join(sorted(map(str, arrays)))
            raise InputError(f"a sample holds {given}; expected {', '.join(names)}")
        found.append({spec.name: validated_input(arrays[spec.name], spec) for spec in inputs})
    for number, sample in enumerate(found, 1):
        refuse_unsound(sample, f"sample {number} of {len(found)}")
    shapes = {tuple(array.shape for array in sample.values()) for sample in found}
    if len(shapes) != 1:
        raise InputError(
            f"samples hold arrays of {len(shapes)} shapes; expected at least one sample, and all "
            "of the same shapes: a plan is made for one"
        )
    return found


# -- graphs ------------------------------------------------------------------------------------
# Before names, which no file's begin with.
_IN, _ADD, _SUM, _SINGLE = "\x00in:", "\x00add:", "\x00sum:", "\x00single:"


def _values_of_small(backend: CpuBackend, samples: Sequence[Arrays]) -> Arrays:
    """Return the first sample's arrays of inputs whose values may decide what is computed."""
    small = (i.name for i in backend.model.inputs if is_small(i.shape, i.dtype))
    return {name: samples[0][name] for name in small}


def _double(arrays: Arrays) -> dict[str, np.ndarray]:
    return {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in arrays.items()
    }


def _in_double(graph: Graph) -> Graph:
    """A float32 graph with the same nodes and constants, in float64.

    Scales of codes stay float32: sums of codes and what becomes of them are the same in both.
    """
    types = {
        name: replace(kind, dtype=FLOAT64) if kind.dtype == FLOAT32 else kind
        for name, kind in graph.types.items()
    }
    constants = _double(graph.constants)
    nodes: list[Node] = []

    def doubled(node: Node) -> Node:
        for scale in filter(None, map(node.input, OPS[node.op].single)):
            single = _SINGLE + scale
            types[single], constants[single] = graph.types[scale], graph.constants[scale]
            names = tuple(single if name == scale else name for name in node.inputs)
            node = replace(node, inputs=names)
        attribute = {"Cast": "to", "DequantizeLinear": "dtype"}.get(node.op, "")
        if node.attributes.get(attribute) == FLOAT32:
            node = node_like(node, attributes={attribute: FLOAT64})
        return node

    for node in with_regions(graph, _in_double).nodes:
        inner = [doubled(each) for each in inner_nodes(node, types.keys())]
        pairs = zip(inner, terms_of(node), strict=True)
        stored = {each.output: term.stored for each, term in pairs if term.stored}
        node = inner[0] if node.op != "Expression" else joined(inner, stored)
        nodes.append(node)
        if node.op == "QLinearConv" and node.attributes["dtype"] == FLOAT32:
            single = _SINGLE + node.output
            types[single] = graph.types[node.output]
            nodes[-1] = replace(node, outputs=(single,))
            nodes.append(Node("Cast", (single,), node.outputs, frozen({"to": FLOAT64})))
    return replace(graph, nodes=tuple(nodes), types=types, constants=constants, origin=None)


def _apart(graph: Graph) -> Graph:
    """The nodes without edges: each reads inputs of the graph, and all results are outputs."""
    types, inputs, nodes = dict(graph.types), dict[str, None](), []
    for node in graph.nodes:
        names = []
        for name in node.inputs:
            inner = name.startswith(_SINGLE)  # between a node and its Cast
            if name and name not in graph.constants and not inner:
                types[_IN + name] = graph.types[name]
                inputs[_IN + name] = None
                name = _IN + name
            names.append(name)
        nodes.append(replace(node, inputs=tuple(names)))
    outputs = tuple(name for node in nodes for name in node.outputs)
    apart = replace(graph, inputs=tuple(inputs), outputs=outputs, nodes=tuple(nodes), types=types)
    return replace(apart, origin=None, open_axes={})


def _apart_decision(decision: Decision) -> Decision:
    return replace(decision, reads={_IN + name: form for name, form in decision.reads.items()})


def _perturbed(graph: Graph) -> Graph:
    """The graph with an input for each node's result, which is added to it."""
    types: dict[str, TensorType] = dict(graph.types)
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        read = tuple(renamed.get(each, each) for each in node.inputs)
        results, sums = [], []
        for name in node.outputs:
            if types[name].dtype != FLOAT64:
                results.append(name)
                continue
            whole = name in graph.outputs  # an output keeps its name
            inner = _SUM + name
            types[inner] = types[_ADD + name] = types[name]
            before, after = (inner, name) if whole else (name, inner)
            results.append(before)
            sums.append(Node("Add", (before, _ADD + name), (after,), {}, inner))
            renamed[name] = after
        nodes += [replace(node, inputs=read, outputs=tuple(results)), *sums]
    added = tuple(name for name in types if name.startswith(_ADD))
    made = replace(graph, inputs=graph.inputs + added, nodes=tuple(nodes), types=types)
    return replace(made, origin=None, open_axes={})


def _run_of(network: CompiledNetwork, graph: Graph) -> Run:
    kinds = [graph.types[name] for name in graph.outputs]
    makers = [Outputs(0).maker(kind.shape, kind.dtype) for kind in kinds]

    def run(arrays: Arrays) -> dict[str, np.ndarray]:
        given = [np.ascontiguousarray(arrays[name]) for name in graph.inputs]
        results = [make() for make in makers]
        read = (array.ctypes.data for array in given)
        network.run([*read, *(address for _, address in results)])
        arrays_made = (array for array, _ in results)
        return dict(zip(graph.outputs, arrays_made, strict=True))

    return run
