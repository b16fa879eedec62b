"""Gradients of convolutions' weights: one of the methods of `algorithms.weight_gradient`.

    ConvWeightGradient(x, dy) -> rows (K, C / g · taps), and the bias's (K,) if that is wanted

Kernels read x and dy where they lie: as planes, with channels last, or in blocks of channels, each
in its own way.
"""

from __future__ import annotations

from math import prod

from leanconv.algorithms import select
from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.algorithms.problem import Problem, default_error
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Window, triple
from leanconv.codegen.lowered import Calls, Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.operators.calls import Part, lowered
from leanconv.operators.conv_node import precision_of
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import replace
from leanconv.spec.conv import Propagation
from leanconv.units import shape_text


class WeightGradient(Operator):
    """The gradient of the weights of a Conv."""

    ops = ("ConvWeightGradient",)
    format_policy = FormatPolicy.FOLLOW_INPUTS
    algorithms = select.GRADIENT_PARAMETERS

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Return whether groups are whole blocks of both images, or there is one group."""
        group = node.attributes["group"]
        channels = (graph.types[name].shape[1] // group for name in node.inputs)
        return group == 1 or all(count % block == 0 for count in channels)

    def accepts_mixed(self, node: Node) -> bool:
        """True: each image is read as it lies."""
        del node
        return True

    def may_be_last(self, node: Node, graph: Graph) -> tuple[str, ...]:
        """Return both images."""
        del graph
        return node.inputs

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Return the cheapest choice, then the others that keep the error."""
        problem, target = gradient_problem(context), context.target
        first = self.default_choice(context)
        if context.accuracy.reproducible:
            return [first]
        if vary_parameters:
            found = [choice for choice, _ in select.choices(problem, target, lean=True)]
        else:
            found = [_costed(each, context) for each in select.ranked(problem, target)]
        return list(dict.fromkeys((first, *found)))

    def default_choice(self, context: NodeContext) -> Choice:
        """Return the cheapest method."""
        return _costed(self._candidate(context, AUTO), context)

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """Return a method's choice for a node, with its cycles and error.

        Raises:
            SpecError: the method cannot compute the node.
        """
        return _costed(self._candidate(context, choice), context)

    def magnitudes(self, context: NodeContext, choice: Choice) -> Magnitudes:
        """Return the bounds between which a choice's stated error holds, for dy of size 1."""
        return select.magnitudes_of(gradient_problem(context), self._candidate(context, choice))

    def details(self, context: NodeContext, choice: Choice) -> list[str]:
        """Return a text for people on the method, such as `"tile 14x2"`."""
        return [self._candidate(context, choice).details]

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Return why methods do not compute a node, or are not considered, by name."""
        return select.rejections(gradient_problem(context), context.target)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Return the kernels of the method."""
        from leanconv.algorithms.weight_gradient.bias import RESULT

        node, candidate = context.node, self._candidate(context, choice)
        x, dy = node.inputs
        kernels, temporaries = candidate.kernels, candidate.temporaries
        part = Part(kernels, _no_calls, None, (), temporaries)
        images = {"x": x, "dy": dy, **dict(zip(("dw", RESULT), node.outputs, strict=False))}
        forms = {name: context.formats[name] for name in (x, dy)}
        return lowered(context, images, forms, [part], candidate.choice.algorithm)

    def _candidate(self, context: NodeContext, choice: Choice) -> Candidate:
        # Here, so that networks without gradients load none of their methods.
        from leanconv.algorithms.weight_gradient.bias import with_bias

        problem, accuracy = gradient_problem(context), context.accuracy
        found = select.choose(problem, context.target, choice, accuracy.reproducible)
        return with_bias(found, problem)


WEIGHT_GRADIENT = WeightGradient()


def _no_calls() -> Calls:
    return {}


def _costed(candidate: Candidate, context: NodeContext) -> Choice:
    problem, choice = gradient_problem(context), candidate.choice
    cycles = select.estimated_cycles(choice, problem, context.target)
    return replace(choice, cycles=cycles)


def gradient_problem(context: NodeContext) -> Problem:
    """The problem of a ConvWeightGradient: its convolution, with dy in the place of the output."""
    node, types, given = context.node, context.graph.types, context.node.attributes
    x, dy = (types[name] for name in node.inputs)
    precision, group = precision_of(x.dtype, types[node.key].dtype, dy.dtype), given["group"]
    rank, kernel = len(x.shape) - 2, tuple(given["kernel_shape"])
    conv = Conv(
        batch=x.shape[0],
        groups=group,
        inputs=x.shape[1] // group,
        outputs=dy.shape[1] // group,
        window=Window(
            triple(x.shape[2:], 1),
            triple(dy.shape[2:], 1),
            triple(kernel, 1),
            triple(tuple(given["strides"]), 1),
            triple(tuple(given["dilations"]), 1),
            triple(tuple(given["pads"][:rank]), 0),
        ),
        x=context.access(node.inputs[0]),
        y=context.access(node.inputs[1]),
        precision=precision,
        epilogue=Epilogue(False, False, None),
    )
    label = f"the gradient of {dy.shape[1]} by {x.shape[1]} weights of {shape_text(kernel)} taps"
    error, any_size = context.accuracy.layer_error, context.any_size
    error = default_error(precision) if error is None else error
    assert prod(types[node.key].shape) == conv.out_channels * conv.reduction
    return Problem(
        conv,
        label=label,
        max_error=error,
        any_size=any_size,
        propagation=Propagation.WEIGHTS,
        sums_dy=given["with_bias"],
    )
