"""Who computes gradients in `gradients.py`: torch, leanconv's plans, its methods one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradient_cases import BOTH, DW, DX, FORWARD, Case
from harness import Run

NCHW, NHWC, BLOCKS = "NCHW", "NHWC", "blocks"


def arrays(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input (N, C, H, W), weights (K, C / groups, kh, kw) and the output's gradient of a case."""
    draw, spec = np.random.default_rng(0), case.spec
    w = draw.standard_normal(spec.weight_shape, np.float32)
    w /= np.sqrt(np.float32(w[0].size))
    return (
        draw.standard_normal(spec.input_shape, np.float32),
        w,
        draw.standard_normal(spec.output_shape, np.float32),
    )


def in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """An array (N, C, H, W) as it lies in a layout."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout == NHWC else array


def of_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """The first image of an array of a layout, (1, C, H, W): enough to compare."""
    return np.moveaxis(array[:1], -1, 1) if layout == NHWC else array[:1]


def torch_engine(case: Case, layout: str, threads: int) -> tuple[Run, str]:
    """torch's own operator, with contiguous tensors or channels last."""
    import torch

    torch.set_num_threads(threads)
    spec = case.spec
    form = torch.channels_last if layout == NHWC else torch.contiguous_format
    x, w, dy = (torch.from_numpy(a).contiguous(memory_format=form) for a in arrays(case))
    steps, pads = list(spec.stride), list(spec.pad_begin)
    if case.what == FORWARD:
        return _forward(x, w, spec), torch.__version__
    mask = [case.what in (DX, BOTH), case.what in (DW, BOTH), False]
    backward = torch.ops.aten.convolution_backward

    def run() -> np.ndarray:
        found = backward(
            dy, x, w, None, steps, pads, list(spec.dilation), False, [0, 0], spec.groups, mask
        )
        part: np.ndarray = found[0][:1].numpy() if case.what == DX else found[1].numpy()
        return part

    return run, torch.__version__


def _forward(x: Any, w: Any, spec: Any) -> Run:
    import torch

    def run() -> np.ndarray:
        with torch.no_grad():
            y = torch.conv2d(x, w, None, spec.stride, spec.pad_begin, spec.dilation, spec.groups)
            part: np.ndarray = y[:1].numpy()
            return part

    return run


def leanconv_engine(case: Case, layout: str, threads: int) -> tuple[Run, str]:
    """A plan, given the weights with each run."""
    import leanconv as lc

    spec = case.spec
    x, w, dy = arrays(case)
    x, dy = in_layout(x, layout), in_layout(dy, layout)
    window = (spec.stride, (*spec.pad_begin, *spec.pad_end), spec.dilation, spec.groups)
    if case.what == FORWARD:
        forward = lc.plan_conv2d(
            x.shape,
            None,
            None,
            *window,
            layout=layout,
            threads=threads,
            w_shape=w.shape,
        )
        return lambda: of_layout(forward(x, w), layout), str(forward.algorithm)
    needs = {DW: ("w",), DX: ("x",), BOTH: ("x", "w")}[case.what]
    plan = lc.plan_conv2d_backward(
        x.shape, w.shape, *window, layout=layout, needs=needs, threads=threads
    )

    def run() -> np.ndarray:
        found = plan(x, w, dy)
        whole = np.asarray(found.dx if case.what == DX else found.dw)
        return of_layout(whole, layout) if case.what == DX else whole

    return run, str(plan.algorithms)


def method_engine(case: Case, method: str, layout: str, threads: int) -> tuple[Run, str]:
    """The kernels of one method of dw, run alone on arrays of a layout.

    Args:
        case: of `DW`.
        method: a name in `WEIGHT_GRADIENTS`, with parameters or not.
        layout: `NCHW`, `NHWC`, or `BLOCKS` of as many channels as a vector has lanes.
        threads: that take part.
    """
    from leanconv.algorithms import Problem, select
    from leanconv.codegen.geometry import Access
    from leanconv.planner.packing import candidate_program
    from leanconv.records import replace
    from leanconv.runtime.calibration import planning_target
    from leanconv.runtime.memory import SharedArena
    from leanconv.runtime.portable import told_program
    from leanconv.spec import NHWC as LAST
    from leanconv.spec import PLAIN, Format
    from leanconv.spec.conv import Propagation

    spec, target = case.spec, planning_target()
    lanes = target.lanes(spec.precision.accumulate)
    form = {NCHW: PLAIN, NHWC: LAST, BLOCKS: Format(lanes)}[layout]
    places = [Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape)]
    problem = Problem.of(spec, places[0], places[1])
    problem = replace(problem, propagation=Propagation.WEIGHTS)
    choice = select.gradient_choice_named(method)
    candidate = select.choose(problem, target, choice)
    x, w, dy = arrays(case)
    held = [_in_blocks(a, lanes) if layout == BLOCKS else in_layout(a, layout) for a in (x, dy)]
    dw = np.full(w.shape, np.nan, w.dtype)
    program, library = candidate_program(candidate, target, threads, ["x", "dy", "dw"])
    arena = SharedArena().part(program.arena_bytes)
    told = told_program(program, library, arena, paced=False)
    addresses = [*(array.ctypes.data for array in (*held, dw)), 0]

    def run() -> np.ndarray:
        told.run(addresses)
        assert held
        return dw

    said = f"{candidate.choice} {candidate.details}, {candidate.workspace_bytes(threads):,} bytes"
    return run, said


def _in_blocks(array: np.ndarray, lanes: int) -> np.ndarray:
    n, c, h, w = array.shape
    blocks = -(-c // lanes)
    filled = np.zeros((n, blocks * lanes, h, w), array.dtype)
    filled[:, :c] = array
    return np.ascontiguousarray(np.moveaxis(filled.reshape(n, blocks, lanes, h, w), 2, -1))


def exact(case: Case) -> np.ndarray:
    """What a run gives, summed in float64: dw, or of y and dx the first image."""
    import torch

    spec = case.spec
    arrays_of = [torch.from_numpy(a) for a in arrays(case)]
    x, w, dy = arrays_of[0], arrays_of[1].double(), arrays_of[2]
    if case.what == FORWARD:
        y = torch.conv2d(
            x[:1].double(), w, None, spec.stride, spec.pad_begin, spec.dilation, spec.groups
        )
        return np.asarray(y.numpy())
    whole: Callable[..., Any] = torch.ops.aten.convolution_backward
    mask = [case.what == DX, case.what != DX, False]
    rest = (None, list(spec.stride), list(spec.pad_begin), list(spec.dilation), False, [0, 0])
    found = None
    for n in range(1 if case.what == DX else spec.batch):
        one = whole(dy[n : n + 1].double(), x[n : n + 1].double(), w, *rest, spec.groups, mask)
        part = one[0] if case.what == DX else one[1]
        found = part if found is None else found + part
    assert found is not None
    return np.asarray(found.numpy())
