"""`leanconv.load` and `filter_bank`: from an ONNX file, or from filters, to a network."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
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
from leanconv.api.stated_shapes import are_numbers, misfit, with_shapes
from leanconv.collector import fewer_collections
from leanconv.errors import InputError, ModelError, SpecError, memory_reported, short
from leanconv.graph.convert import LAST_OPSET
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.planner.plan_file import PlanFile, read_plan
from leanconv.progress import Progress, checked_progress, spending, step, working
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps, checked_groups
from leanconv.types import FLOAT32, FLOAT64, FLOATS
from leanconv.units import shape_text

log = logging.getLogger(__name__)
_FILTERS = "filters"  # the node of a filter bank
_EXTENTS = 1 << 12  # of an image beside those of filters: dilated ones fit, too
_PAD_MODES = {"zeros": None, "reflect": "reflect", "replicate": "edge"}  # ONNX's names


@memory_reported("loading a network")
@fewer_collections()
def load(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    dtype: str | type[np.floating] | np.dtype | None = None,
    tune: bool = False,
    reproducible: bool = False,
    plan: str | os.PathLike[str] | None = None,
    algorithms: Mapping[str, str] | None = None,
    device: str = "cpu",
    precision: str | None = None,
    progress: Progress | None = None,
    shapes: Mapping[str, Sequence[int | tuple[int, ...]] | int | np.ndarray]
    | Sequence[int | tuple[int, ...]]
    | np.ndarray
    | None = None,
    samples: Any = None,
    shared_weights: bool | str | os.PathLike[str] = False,
    stream_weights: bool = False,
    weights: str | os.PathLike[str] | Mapping[str, Any] | GivenWeights | None = None,
) -> Network:
    """Read an ONNX network, and plan it if its input shapes are fixed.

    Args:
        model: a file's path, its bytes, or an `onnx.ModelProto`. A file that is mapped, and the
            weights beside it, must not shrink while the network is in use.
        memory_limit: bytes, or text such as `"12 MiB"`, that weights and arena may take together.
        max_error: the largest relative error of the outputs, max|y - exact| / max|exact|, that a
            plan may state; refused if none states as little. Without `samples` what a plan states
            is an estimate, and for some data the error is larger: each layer's error is bounded
            (`docs/algorithms.md`), layers are taken to add up like independent errors and to grow
            up to 5 times on their way to the outputs, and on real pictures some networks let them
            grow 60 times. By default 1e-5 in float32 is aimed at: each layer gets its share, and
            networks of many or long sums may state more, as `net.explain()` says then.
        threads: threads that take part; by default the cores that this process may use.
        dtype: `"float64"` computes a float32 network in double precision; on a GPU `"float16"` and
            `"bfloat16"` keep its values in half precision.
        tune: measure the choices that are estimated best for each convolution, once, and take the
            fastest; what was measured is kept in the settings' cache folder for later processes.
            Progress is logged. Fused blocks, bodies of loops that are one node, and plans within
            limits are chosen by estimate.
        reproducible: an image gives the same bits alone and within any batch, with any threads and
            memory limit, as for `plan_conv2d`: every node's layouts, algorithm and open parameters
            are chosen as for one image without a limit, and where they do not fit a limit, no
            others are taken. (Without it, one plan gives the same bits with any threads.)
        plan: a file that `net.plan.save` has written: it says how the network is computed for its
            input shapes, and what the other options are that are not given here. Where it does not
            fit this CPU or network any more, a warning says why, and planning starts anew.
        algorithms: for convolutions by the names of their nodes in the file, algorithms as
            `plan_conv2d` takes them: `{"conv1": "winograd:m=4"}`. Blocks are not fused then.
        device: `"cpu"`, or `"cuda"` or `"cuda:1"` for a GPU, whose arrays come and go through
            DLPack.
        precision: `"float16"` or `"bfloat16"` lets a float32 network keep its weights and the
            values between layers in half precision, half the bytes, and multiply in it where the
            processor is fast at that (sums are float32, of float16 those of up to 64 products
            float16). Layers and values stay in float32 where that is faster by estimate and fits
            `memory_limit`. Inputs and outputs keep their types. None: as the file says, whose
            float16 is kept where that is as fast, or what a `max_error` of some hundredths allows,
            where that is faster and there is no `memory_limit`.
            On a GPU, as for `plan_conv2d`.
        progress: a function of (stage, done, total), called by this thread while the network is
            read and planned: `("compiling kernels", 31, 54)`. What it raises ends the work and
            leaves nothing behind but whole entries of the caches. It may run what is planned
            already, and plan nothing. With or without it, work of more than a second is logged at
            level INFO (logger `leanconv.progress`).
        shapes: the shapes that the network is for, by input, or that of the only input, whatever
            the file says of them: for each axis a number, (least, most) or (least, most, step), as
            in `{"x": (1, 3, 48, (32, 2304))}`. Numbers alone, `{"x": (1, 3, 640, 640)}`, make the
            network one of fixed shapes: planned now, for these alone, by a search of their own. Of
            ranges the largest and the smallest are planned now, and no call within the range
            compiles anything: all its shapes, at most 20000, are looked at once, some milliseconds
            each, and what they need is compiled and kept in the cache folder. Other shapes are
            refused. Where the value of an input decides what is computed, give that: a number or
            an array.
        samples: inputs as they will come: an array, arrays by the inputs' names, or a list of
            either, all of one shape. The network is run on them in float64, and the plan for this
            shape is the first of ever more accurate ones whose largest measured error is within
            `max_error`; without that, it is the usual plan. `net.plan.predicted_error` is what was
            measured, a fact for these samples and no bound for others. `net.plan.save` keeps the
            plan. It takes a run in float64 for each layer and sample, and memory for all values
            between layers, in both precisions. Inputs whose values decide what is computed must
            have the same in all samples; for others the network is planned as without samples.
        shared_weights: keep packed weights in a file that all processes map which plan alike, so
            that eight workers on one machine hold them once: True for the folder `weights` of the
            settings' cache folder, or the path of one that you alone may write (on `/dev/shm` it is
            memory). The first process packs and writes; others read the file, check its digest,
            and pack nothing. It is bounded by `LEANCONV_WEIGHT_CACHE_BYTES`. Where it cannot be
            used, a warning says so, and the weights are in this process's memory. Bits, plans and
            `memory_limit` are those without it.
        stream_weights: keep packed weights in a file without a name in the cache folder and read
            them in each run, one layer's while the one before is computed, so that a network runs
            in a `memory_limit` smaller than its weights: as many stay in memory as the limit has
            room for; without a limit, as few as can. Layers of many weights are computed by parts
            of their output channels. The same bits as without it, where the same algorithms are
            chosen; `net.explain()` says how many bytes a run reads, and how long it waits.
        weights: weights that do not lie beside the model, above all for a model given as bytes: the
            folder in which its external files are, or a mapping: for the name of an external file,
            as the model has it, its bytes, for that of an initializer an array.

    Returns:
        The network; `net(x)` runs it, and so does `net.run(None, {name: x})`, as with onnxruntime's
        sessions.

    Raises:
        InputError: the file cannot be read, or is of another known format; its nodes do not take
            `shapes`.
        ModelError: the file is damaged or breaks ONNX's rules.
        UnsupportedError: the network needs something that leanconv does not do.
        BudgetError: no plan fits the limits; it names the least that works.
        SpecError: an option makes no sense.
    """
    tune, reproducible = checked_flag("tune", tune), checked_flag("reproducible", reproducible)
    if shapes is not None and device != "cpu":
        raise SpecError(f"got shapes for device {device!r}; expected None, or device 'cpu'")
    computed, source = checked_dtype(dtype), model_source(model)
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
        read, ranges = _read(source, given_weights), None
        stated = read
        if shapes is not None:
            stated, ranges = with_shapes(read, shapes)
        sample = None
        if samples is not None:
            pinned, sample = _measured(read, options, samples)
        try:
            network = Network(CpuBackend(stated, options, pinned, ranges), shown)
        except ModelError as error:
            raise misfit(error, read, stated) from error
        if sample is not None:
            network.run(sample)  # so that `network.plan` is there
        return network


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


def _read(source: Path | bytes, weights: GivenWeights | None) -> Model:
    step("reading", 0, 1)
    with spending("reading"):
        model = read_model(source, weights=weights)
    step("reading", 1, 1)
    return model


def model_source(model: Any) -> Path | bytes:
    """Return the path or the bytes, as `read_model` takes them, of any model that `load` takes."""
    if hasattr(model, "SerializeToString"):
        try:
            return bytes(model.SerializeToString())
        except Exception as error:  # protobuf's own class, which is not imported here
            raise ModelError(
                f"the ModelProto cannot be serialised ({error}); expected one of under 2 GiB; "
                "save larger ones with onnx.save(model, path, save_as_external_data=True) and "
                "load the path"
            ) from error
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if isinstance(model, str | os.PathLike):
        return Path(model)
    mend = ""
    if hasattr(model, "state_dict"):  # of torch
        mend = "; export it: torch.onnx.export(network.eval(), (example,), 'model.onnx')"
    raise InputError(
        f"model is {type(model).__name__}; expected a path, the bytes of an ONNX file, or an "
        f"onnx.ModelProto{mend}"
    )


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
