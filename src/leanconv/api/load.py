"""`leanconv.load`: from an ONNX file to a network, by a snapshot of its plan where there is one.

With a snapshot neither the reader of files nor the planner is imported (`api/snapshots`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.network import Network
from leanconv.api.options import model_source
from leanconv.api.snapshots import SnapshotMemory, Snapshots
from leanconv.collector import fewer_collections
from leanconv.errors import memory_reported
from leanconv.progress import Progress

if TYPE_CHECKING:
    from leanconv.api.backend import PlanningBackend
    from leanconv.graph.onnx_tensor import GivenWeights


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
    given = {
        "memory_limit": memory_limit,
        "max_error": max_error,
        "threads": threads,
        "dtype": dtype,
        "tune": tune,
        "reproducible": reproducible,
        "plan": plan,
        "algorithms": algorithms,
        "device": device,
        "precision": precision,
        "progress": progress,
        "shapes": shapes,
        "samples": samples,
        "shared_weights": shared_weights,
        "stream_weights": stream_weights,
        "weights": weights,
    }
    source = model_source(model)
    snapshots = Snapshots.of(source, given)
    found = None if snapshots is None else snapshots.network(_planning)
    if found is not None:
        return found
    from leanconv.api.file_network import file_network  # late: the planner, and all that it needs

    return file_network(source, snapshots, **given)


def _planning(snapshots: Snapshots, beside: SnapshotMemory) -> PlanningBackend:
    """The backend that plans a network whose snapshots were found."""
    from leanconv.api.file_network import planning_backend

    return planning_backend(snapshots, beside)
