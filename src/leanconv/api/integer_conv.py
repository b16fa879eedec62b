"""Convolutions of integers: bytes by bytes, exact sums in int32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.api.conv_arguments import CODES, Constants, fitting_array
from leanconv.api.layer_plan import LayerPlan, layer_model
from leanconv.api.options import PlanOptions
from leanconv.errors import InputError, SpecError
from leanconv.graph.convert import FileNode
from leanconv.graph.onnx_import import Model
from leanconv.planner.lowered_graph import Step
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, spec_of
from leanconv.types import FLOAT32, INT32, Precision, find_dtype

_NODE = "conv"


class IntegerPlan(LayerPlan):
    """A convolution of uint8 or int8 by int8 or uint8 weights, ready to run; y is int32, exact.

    Sums wrap at 32 bits, as those of ConvInteger do: 65,793 products of the largest codes fit.

    Attributes:
        spec: what is computed.
    """

    instead = "send the weights, and call leanconv.plan_conv2d where the plan is wanted"

    spec: ConvSpec

    def __init__(self, spec: ConvSpec, constants: Constants, options: PlanOptions) -> None:
        super().__init__(spec, _model(spec, constants), options, _NODE)

    @property
    def _step(self) -> Step:
        return max(self.plan.steps, key=lambda step: step.flops)

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self._step.algorithm

    @property
    def parameters(self) -> str:
        """What the algorithm chose, for people."""
        return self.selector.partition(":")[2]

    @property
    def selector(self) -> str:
        """The text that selects the same as `algorithm=`."""
        at = self.plan.steps.index(self._step)
        return str(self.plan.decisions[at].choice) or self.algorithm

    @property
    def workspace_bytes(self) -> int:
        """Memory that runs work in."""
        return self.memory_bytes - self.weight_bytes

    @property
    def weight_bytes(self) -> int:
        """Packed weights and bias."""
        return self.plan.weight_bytes


def checked_integer_spec(
    x_shape: Sequence[int],
    x_dtype: object,
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    options: PlanOptions,
) -> ConvSpec:
    """The convolution of integers that the arguments of `plan_conv2d` describe.

    Raises:
        InputError, SpecError: they describe none.
    """
    w, bias, slope = constants
    x = find_dtype(np.dtype(x_dtype)) if isinstance(x_dtype, str | np.dtype | type) else None
    if x not in CODES:
        raise InputError(
            f"x is {x_dtype} and w {w.dtype}; expected x of uint8 or int8: its sums are int32"
        )
    refused = {
        "activation": arguments.activation is not None,
        "slope": slope is not None,
        "residual": residual,
        "precision": options.precision is not None,
        "tune": options.tune,
    }
    for name, given in refused.items():
        if given:
            raise SpecError(f"{name} is given for weights of {w.dtype}; expected none: y is int32")
    kind = find_dtype(w.dtype)
    assert kind is not None
    types = Precision(x, kind, INT32, INT32)
    spec = spec_of(x_shape, w.shape, arguments, types, bias is not None, False)
    if bias is not None:
        fitting_array("bias", bias, (spec.out_channels,), INT32)
    return spec


def _model(spec: ConvSpec, constants: Constants) -> Model:
    """ConvInteger, with what bias and layout need around it."""
    rank, last = len(spec.kernel), spec.layout == "NHWC"
    nodes, value = [], "x"
    arrays = {"w": constants.w}
    if last:
        order = (0, rank + 1, *range(1, rank + 1))
        nodes.append(FileNode("Transpose", (value,), ("planes",), {"perm": order}, "to_planes"))
        value = "planes"
    attributes = {
        "strides": spec.stride,
        "dilations": spec.dilation,
        "pads": (*spec.pad_begin, *spec.pad_end),
        "group": spec.groups,
    }
    results = ["sums"]
    if constants.bias is not None:
        arrays["bias"] = constants.bias.reshape(-1, *(1,) * rank)
        results.append("biased")
    if last:
        results.append("last")
    results[-1] = "y"
    names = iter(results)
    produced = next(names)
    nodes.append(FileNode("ConvInteger", (value, "w"), (produced,), attributes, _NODE))
    if constants.bias is not None:
        following = next(names)
        nodes.append(FileNode("Add", (produced, "bias"), (following,), {}, "add_bias"))
        produced = following
    if last:
        order = (0, *range(2, rank + 2), 1)
        nodes.append(FileNode("Transpose", (produced,), ("y",), {"perm": order}, "to_last"))
    types = spec.precision
    x, y = (types.x, spec.input_shape), (types.y, spec.output_shape)
    return layer_model(tuple(nodes), x, y, arrays, FLOAT32)
