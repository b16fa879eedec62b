"""Layers that are computed as networks of few nodes: plans of one, filters for any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np

from leanconv.api.array_plan import ArrayPlan
from leanconv.api.conv_arguments import (
    Constants,
    checked_spec,
    weight_dtype,
)
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.kept_plans import ConstantsCopy, KeptPlan
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions, PlanOptions
from leanconv.errors import SpecError, memory_reported, short
from leanconv.graph.convert import LAST_OPSET, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.planner.network_plan import NetworkPlan
from leanconv.progress import working
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps, checked_groups
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import FLOATS, DType
from leanconv.units import shape_text

_P = TypeVar("_P", bound="LayerPlan")
_S = TypeVar("_S", bound="ConvSpec | TransposedSpec")
_Value: TypeAlias = tuple[DType, tuple[int | str | None, ...]]
_FILTERS = "filters"  # the node of a filter bank
_EXTENTS = 1 << 12  # of an image beside those of filters: dilated ones fit, too
_PAD_MODES = {"zeros": None, "reflect": "reflect", "replicate": "edge"}  # ONNX's names


class LayerPlan(ArrayPlan):
    """One layer, ready to run. Calls from several threads run in turn.

    Attributes:
        spec: what is computed.
    """

    @memory_reported("planning a convolution")
    def __init__(
        self, spec: ConvSpec | TransposedSpec, model: Model, options: PlanOptions, layer: str
    ) -> None:
        """Plan.

        Args:
            spec: what is computed.
            model: the network, of one input and one output.
            options: as of `plan_conv2d`.
            layer: the node that `options.algorithm` is for.
        """
        self.spec = spec
        y = model.output_dtypes[0]
        assert y is not None
        backend = CpuBackend(model, _network_options(options, layer))
        self._compiled = backend.compile((spec.input_shape,))
        network = self._compiled.network
        new = network.outputs.maker(spec.output_shape, y)
        self._bind(spec, model.inputs[0].dtype, y, new, network.run)

    @property
    def plan(self) -> NetworkPlan:
        """What runs: steps, bytes, expected error."""
        return self._compiled.plan

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.plan.memory_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan, counted as they were."""
        return self._compiled.used_bytes

    @property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.plan.predicted_error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"

    def explain(self) -> str:
        """Say how it is computed, with its bytes."""
        return self._compiled.explain()


@memory_reported("planning a convolution")
def filter_bank(
    w: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    stride: Steps = 1,
    padding: Padding = "same",
    dilation: Steps = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    algorithm: str | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
) -> Network:
    """Make a network of one convolution, which takes images of any batch and size.

    `net = filter_bank(w)` computes what `conv2d` does, and `leanconv.tiled(net)` runs it over
    images larger than memory. Its input is `x`, (N, C, spatial…), and its output `y`.

    Args:
        w: filters (K, C / groups, kernel…) of one to three spatial axes, float32 or float64.
        bias, stride, dilation, groups, algorithm: as for `plan_conv2d`.
        padding: as there, but `"same"` by default, which has no stride.
        padding_mode: "zeros"; "reflect" (dcb|abcd|cba) or "replicate" (aaa|abcd|ddd).
        memory_limit, max_error, threads, reproducible: as for `leanconv.load`.

    Returns:
        The network, as `leanconv.load` gives one.

    Raises:
        SpecError: the arguments describe no convolution.
        InputError: w or bias is no array of the dtype and shape expected.
    """
    options = PlanOptions.checked(algorithm, memory_limit, max_error, threads, False, reproducible)
    dtype, groups = weight_dtype(w, FLOATS), checked_groups(groups)
    if not 3 <= w.ndim <= 5:
        raise SpecError(
            f"w has shape {shape_text(w.shape)}; expected (K, C/groups, kernel…) of 1 to 3 spatial "
            "axes: give w[:, None] for filters of images with one channel"
        )
    largest = (1, groups * w.shape[1], *(_EXTENTS * n for n in w.shape[2:]))
    arguments = ConvArguments(stride, padding, dilation, groups)
    spec = checked_spec(largest, Constants(w, bias), arguments, False)
    if isinstance(padding, str) and padding == "same" and max(spec.stride) > 1:
        raise SpecError(
            f"padding is 'same' with a stride of {shape_text(spec.stride)}, which depends on the "
            "image's size; expected integers"
        )
    if not isinstance(padding_mode, str) or padding_mode not in _PAD_MODES:
        modes = ", ".join(map(repr, _PAD_MODES))
        raise SpecError(f"padding_mode is {short(padding_mode)}; expected one of {modes}")
    model = layer_model(*_filters(spec, padding_mode, Constants(w, bias)), dtype)
    return Network(CpuBackend(model, _network_options(options, _FILTERS)), "filters")


def _filters(
    spec: ConvSpec, padding_mode: str, constants: Constants
) -> tuple[tuple[FileNode, ...], _Value, _Value, dict[str, np.ndarray]]:
    """Nodes, input, output and constants of filters over images of any size."""
    held = {"w": constants.w}
    if constants.bias is not None:
        held["bias"] = constants.bias
    attributes = {"strides": spec.stride, "dilations": spec.dilation, "group": spec.groups}
    mode, inputs, nodes = _PAD_MODES[padding_mode], ("x", *held), []
    if mode is None:
        attributes["pads"] = (*spec.pad_begin, *spec.pad_end)
    else:
        inputs = ("bordered", *held)
        held["pads"] = np.array((0, 0, *spec.pad_begin, 0, 0, *spec.pad_end), np.int64)
        nodes.append(FileNode("Pad", ("x", "pads"), ("bordered",), {"mode": mode}, "border"))
    nodes.append(FileNode("Conv", inputs, ("y",), attributes, _FILTERS))
    axes = ("depth", "height", "width")[-len(spec.kernel) :]
    x: _Value = spec.precision.x, ("batch", spec.in_channels, *axes)
    y: _Value = spec.precision.y, ("batch", spec.out_channels, *(None for _ in axes))
    return tuple(nodes), x, y, held


def _network_options(options: PlanOptions, layer: str) -> NetworkOptions:
    """The same options of a network; an algorithm is that of a layer."""
    return NetworkOptions(
        threads=options.threads,
        memory_limit=options.memory_limit,
        max_error=options.max_error,
        reproducible=options.reproducible,
        algorithms={} if options.algorithm is None else {layer: options.algorithm},
    )


def kept_layer(
    plan: Callable[[_S, Constants, PlanOptions], _P],
    spec: _S,
    options: PlanOptions,
    constants: Constants,
) -> KeptPlan[_P]:
    """A plan of a class with these constants, to be kept for later calls."""
    copied = ConstantsCopy(constants)  # before packing: the next call notices a change
    with working(str(spec)):
        return KeptPlan(plan(spec, constants, options), copied)


def layer_model(
    nodes: tuple[FileNode, ...],
    x: _Value,
    y: _Value,
    constants: Mapping[str, np.ndarray],
    dtype: DType,
) -> Model:
    """A network of few nodes from "x" to "y", as a file would have it.

    Args:
        nodes: in order.
        x, y: element type and shape of input and output; names and None for open extents.
        constants: by name.
        dtype: that the network's floats have.
    """
    return Model(
        inputs=(ModelInput("x", *x),),
        outputs=("y",),
        output_shapes=(y[1],),
        output_dtypes=(y[0],),
        opset=LAST_OPSET,
        nodes=nodes,
        constants=MappingProxyType({n: np.ascontiguousarray(a) for n, a in constants.items()}),
        dtype=dtype,
        bytes=sum(array.nbytes for array in constants.values()),
        limits=Limits(),
        metadata=MappingProxyType({}),
    )
