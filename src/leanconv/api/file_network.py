"""Networks planned from an ONNX file, or from filters."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.api.conv_arguments import Constants, checked_spec, weight_dtype
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import input_specs
from leanconv.api.network import Network
from leanconv.api.options import (
    NetworkOptions,
    PlanOptions,
    checked_dtype,
    checked_error,
    checked_flag,
    checked_limit,
    checked_shared,
)
from leanconv.api.snapshots import SnapshotMemory, Snapshots
from leanconv.api.stated_shapes import are_numbers, misfit, with_shapes
from leanconv.errors import ModelError, SpecError, memory_reported, short
from leanconv.graph.convert import LAST_OPSET
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model, model_of, read_model
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.planner.plan_file import PlanFile, read_plan
from leanconv.progress import checked_progress, spending, step, working
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps, checked_groups
from leanconv.types import FLOAT32, FLOAT64, FLOATS
from leanconv.units import shape_text

log = logging.getLogger(__name__)
_FILTERS = "filters"  # the node of a filter bank
_EXTENTS = 1 << 12  # of an image beside those of filters: dilated ones fit, too
_PAD_MODES = {"zeros": None, "reflect": "reflect", "replicate": "edge"}  # ONNX's names


def file_network(
    source: Path | bytes,
    snapshots: Snapshots | None,
    *,
    memory_limit: Any,
    max_error: Any,
    threads: Any,
    dtype: Any,
    tune: Any,
    reproducible: Any,
    plan: Any,
    algorithms: Any,
    device: Any,
    precision: Any,
    progress: Any,
    shapes: Any,
    samples: Any,
    shared_weights: Any,
    stream_weights: Any,
    weights: Any,
) -> Network:
    """Read a network, and plan it if its input shapes are fixed.

    Args:
        source: the path of a file, or its bytes; and all options, as `leanconv.load` takes them.
        snapshots: where plans are kept; None keeps none.

    Returns:
        The network.

    Raises:
        LeanConvError: as `leanconv.load` does.
    """
    tune, reproducible = checked_flag("tune", tune), checked_flag("reproducible", reproducible)
    if shapes is not None and device != "cpu":
        raise SpecError(f"got shapes for device {device!r}; expected None, or device 'cpu'")
    computed = checked_dtype(dtype)
    given_weights = GivenWeights.checked(weights)
    shown = source.name if isinstance(source, Path) else f"a model of {len(source)} bytes"
    checked_progress(progress)
    shared = checked_shared(shared_weights)
    if shared and device != "cpu":
        raise SpecError(
            f"got shared_weights for device {device!r}; expected False, or device 'cpu'"
        )
    if samples is not None and device != "cpu":
        raise SpecError(f"got samples for device {device!r}; expected None, or device 'cpu'")
    if stream_weights and device != "cpu":
        raise SpecError(f"got stream_weights for device {device!r}; expected device 'cpu'")
    if device != "cpu":
        from leanconv.gpu import backend

        backend.check_options(
            threads=threads, tune=tune, reproducible=reproducible, plan=plan, algorithms=algorithms
        )
        limits = checked_limit(memory_limit), checked_error(max_error)
        with working(shown, progress):
            driver = backend.device_driver(device)
            return Network(
                backend.DeviceBackend(
                    _read(source, given_weights), driver, computed, precision, *limits
                )
            )
    if precision is not None and computed == FLOAT64:
        raise SpecError(f"got precision {precision!r} together with dtype 'float64'; expected one")
    limiting = limiting_beside(algorithms, memory_limit, max_error, plan)
    if tune and limiting:
        log.warning("tune=True: with %s algorithms are chosen by estimate", limiting[0])
    others = {
        "algorithms": algorithms or None,
        "shapes": shapes,
        "plan": plan,
        "tune": tune or None,
    }
    beside = [name for name, value in others.items() if value is not None]
    streams = checked_flag("stream_weights", stream_weights)
    if streams and samples is not None:
        raise SpecError("got stream_weights together with samples; expected one of them")
    if samples is not None and (beside or computed == FLOAT64):
        other = beside[0] if beside else "dtype='float64'"
        raise SpecError(f"got samples together with {other}; expected one of them")
    if shapes is not None and (tune or plan is not None) and not are_numbers(shapes):
        raise SpecError(
            f"got ranges of shapes together with {'tune' if tune else 'plan'}; expected one"
        )
    options = NetworkOptions.checked(
        threads=threads,
        dtype=computed,
        memory_limit=memory_limit,
        max_error=max_error,
        reproducible=reproducible,
        algorithms=algorithms,
        tune=tune and not limiting,
        precision=precision,
        shared_weights=shared,
        stream_weights=streams,
    )
    pinned = None if plan is None else read_plan(plan)
    if pinned is not None:
        options = completed(options, pinned)
    with working(shown, progress):
        data = None if snapshots is None else snapshots.data  # the bytes that its key names
        read, ranges = _read(source, given_weights, data), None
        stated = read
        if shapes is not None:
            stated, ranges = with_shapes(read, shapes)
        sample = None
        if samples is not None:
            pinned, sample = _measured(read, options, samples)
        planning = CpuBackend(stated, options, pinned, ranges, snapshots=snapshots)
        try:
            network = Network(planning, shown)
        except ModelError as error:
            raise misfit(error, read, stated) from error
        if sample is not None:
            network.run(sample)  # so that `network.plan` is there
        return network


def planning_backend(snapshots: Snapshots, beside: SnapshotMemory) -> CpuBackend:
    """The backend that plans a network whose snapshots were used until now.

    Args:
        snapshots: of the network.
        beside: the memory of those that are in use.

    Raises:
        ModelError: its file has changed since.
    """
    source = snapshots.source
    model = model_of(snapshots.same_data(), source if isinstance(source, Path) else None)
    if snapshots.shapes is not None:
        model, _ = with_shapes(model, snapshots.shapes)
    return CpuBackend(model, snapshots.options, snapshots=snapshots, beside=beside)


def _measured(
    model: Model, options: NetworkOptions, samples: Any
) -> tuple[PlanFile, dict[str, np.ndarray]]:
    """The plan that keeps `max_error` on the samples, and the first of these."""
    from leanconv.api.measured_error import Measurements, checked_samples, measured_plan

    options = replace(options, shared_weights=False)  # these plans are not kept
    exact = CpuBackend(model, replace(options, dtype=FLOAT64, max_error=None))
    usual = CpuBackend(model, replace(options, max_error=None))
    if usual.dtype != FLOAT32:
        raise SpecError(f"got samples for a network in {usual.dtype}; expected one in float32")
    given = checked_samples(samples, input_specs(model, usual.dtype))
    measuring = Measurements(usual, exact, given)
    return measured_plan(measuring, options.max_error, options.memory_limit), given[0]


def limiting_beside(algorithms: Any, memory_limit: Any, max_error: Any, plan: Any) -> list[str]:
    """The options given that decide algorithms by themselves.

    Raises:
        SpecError: algorithms are given as well.
    """
    given = {"memory_limit": memory_limit, "max_error": max_error, "plan": plan}
    limiting = [name for name, value in given.items() if value is not None]
    if algorithms and limiting:
        raise SpecError(f"got algorithms together with {limiting[0]}; expected one of them")
    return limiting


def completed(options: NetworkOptions, pinned: PlanFile) -> NetworkOptions:
    """The options, completed by those of a plan file."""
    held = {**vars(pinned), "max_error": checked_error(pinned.max_error)}
    missing = [n for n, each in vars(options).items() if each is None or each is False]
    return replace(options, **{name: held[name] for name in missing if name in held})


def _read(
    source: Path | bytes, weights: GivenWeights | None, data: memoryview | None = None
) -> Model:
    step("reading", 0, 1)
    with spending("reading"):
        model = read_model(source, weights=weights, data=data)
    step("reading", 1, 1)
    return model


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
        spread_bytes=0,
    )
