"""Filters as a network of one convolution, for images of any size."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from leanconv.api.conv_arguments import Constants, checked_spec, weight_dtype
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions, PlanOptions
from leanconv.errors import SpecError, memory_reported, short
from leanconv.graph.convert import LAST_OPSET
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps, checked_groups
from leanconv.types import FLOATS
from leanconv.units import shape_text

_FILTERS = "filters"  # the node of a filter bank
_EXTENTS = 1 << 12  # of an image beside those of filters: dilated ones fit, too
_PAD_MODES = {"zeros": None, "reflect": "reflect", "replicate": "edge"}  # ONNX's names


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
    weight_dtype(w, FLOATS)
    groups = checked_groups(groups)
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
    given = NetworkOptions(
        threads=options.threads,
        memory_limit=options.memory_limit,
        max_error=options.max_error,
        reproducible=options.reproducible,
        algorithms={} if options.algorithm is None else {_FILTERS: options.algorithm},
    )
    return Network(CpuBackend(_model(spec, padding_mode, Constants(w, bias)), given), "filters")


def _model(spec: ConvSpec, padding_mode: str, constants: Constants) -> Model:
    """Filters over images of any size, as a file would have them."""
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
    return Model(
        inputs=(ModelInput("x", spec.precision.x, ("batch", spec.in_channels, *axes)),),
        outputs=("y",),
        output_shapes=(("batch", spec.out_channels, *(None for _ in axes)),),
        output_dtypes=(spec.precision.y,),
        opset=LAST_OPSET,
        nodes=tuple(nodes),
        constants=MappingProxyType({n: np.ascontiguousarray(a) for n, a in held.items()}),
        dtype=spec.precision.x,
        bytes=sum(array.nbytes for array in held.values()),
        limits=Limits(),
        metadata=MappingProxyType({}),
    )
