"""MEC and im2col in training: gradients of weights and of data by their lowered tensors.

Two of the MEC paper's three benefits are training's: larger models within a memory, larger
mini-batches. It has no backward pass. Here dW = Σ P(n, oh)ᵀ · dy[n, oh] over the partitions of L
(`algorithms/weight_gradient/lowered.py`), and dx is MEC of dy with turned weights, at the
mini-batches of the paper's two platforms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np

import formulas
import leanconv as lc
from documents.chart import Chart
from documents.clock import fitting
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.mec import mebibytes, milliseconds, named, over
from documents.timing import AGREES, Timed, in_turn
from leanconv.errors import SpecError
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec

_FEW = 3  # turns of a batch
_BATCH, _IMAGE, _MEC, _MEC_IMAGE = (
    "im2col:images=batch",
    "im2col:images=1",
    "mec:images=batch",
    "mec:images=1",
)
_DW = (_BATCH, _IMAGE, _MEC, _MEC_IMAGE, "direct", "winograd")
_DX = ("im2col:rows=whole", "mec:solution=B", "direct", "winograd")
_TORCH = "torch"


class Arrays:
    """x, w and dy of one layer, channels last, the same numbers every time."""

    def __init__(self, spec: ConvSpec) -> None:
        rng = np.random.default_rng(0)
        self.spec = spec
        last = [(shape[0], *shape[2:], shape[1]) for shape in (spec.input_shape, spec.output_shape)]
        self.x, self.dy = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in last)
        self.w = rng.uniform(-1, 1, spec.weight_shape).astype(np.float32)

    def planned(self, need: str, method: str, threads: int) -> tuple[Callable[[], Any], int]:
        """A gradient by a method: what computes it, and its workspace.

        Raises:
            SpecError: the method refuses the layer.
        """
        plan = lc.plan_conv2d_backward(
            self.x.shape,
            self.w.shape,
            self.spec.stride,
            layout="NHWC",
            needs=(need,),
            algorithm={need: method},
            threads=threads,
        )
        made = np.empty_like(self.w if need == "w" else self.x)
        out = lc.Gradients(**{**dict.fromkeys(lc.Gradients._fields), f"d{need}": made})

        def run() -> np.ndarray:
            plan(self.x, self.w, self.dy, out=out)
            return made

        return run, plan.workspace_bytes

    def torch(self, need: str, threads: int) -> Callable[[], Any]:
        """torch's own, with channels last.

        Raises:
            ImportError: this Python has no torch.
        """
        import torch

        torch.set_num_threads(threads)
        x, dy = (torch.from_numpy(a).permute(0, 3, 1, 2) for a in (self.x, self.dy))
        w = torch.from_numpy(self.w).contiguous(memory_format=torch.channels_last)
        wanted = [need == "x", need == "w", False]
        steps = list(self.spec.stride), [0, 0], [1, 1], False, [0, 0], 1
        backward = torch.ops.aten.convolution_backward

        def run() -> np.ndarray:
            found = backward(dy, x, w, None, *steps, wanted)[wanted.index(True)]
            made: np.ndarray = (found.permute(0, 2, 3, 1) if need == "x" else found).numpy()
            return made

        return run


def _image_bytes(name: str) -> int:
    """Of an image of a layer, what all methods hold together."""
    spec = layer(name)
    return 16 * formulas.mec_elements(spec) + 6 * (spec.input_bytes + 4 * spec.output_bytes)


def _measure(effort: Effort, batch: int) -> Data:
    found = []
    if batch > 1:
        effort = replace(effort, rounds=min(effort.rounds, _FEW))  # of seconds each
    for name in named(effort):
        images = min(2, batch) if effort.quick else fitting(batch, _image_bytes(name))
        arrays = Arrays(layer(name, images))
        case: Data = {"layer": name, "batch": images}
        for need, methods in (("w", _DW), ("x", _DX)):
            case[f"d{need}"] = _gradient(arrays, need, methods, effort)
        found.append(case)
        del arrays
    return {"batch": batch, "cases": found, "cpu_time": effort.threads == 1}


def _gradient(arrays: Arrays, need: str, methods: Sequence[str], effort: Effort) -> Data:
    """Bytes and times of a gradient by each method that takes the layer."""
    runs: dict[str, Timed] = {}
    sizes: dict[str, int] = {}
    right: np.ndarray | None = None
    for method in methods:
        try:
            run, sizes[method] = arrays.planned(need, method, effort.threads)
        except SpecError:
            continue
        if method == _BATCH and arrays.spec.batch > 1:
            continue  # gigabytes; an image at a time is timed
        right = _checked(run(), right)
        runs[method] = Timed(run, {}, None)
    try:
        run = arrays.torch(need, effort.threads)
        _checked(run(), right)
        runs[_TORCH] = Timed(run, {}, None)
    except ImportError:
        pass
    # One thread's CPU time, which other work on the machine changes least.
    clock = time.thread_time_ns if effort.threads == 1 else time.perf_counter_ns
    times = {name: timed["ns"] for name, timed in in_turn(runs, effort, clock).items()}
    return {"bytes": sizes, "times": times}


def _checked(found: np.ndarray, right: np.ndarray | None) -> np.ndarray:
    """An answer, compared with another method's."""
    if right is None:
        return np.array(found)
    apart = float(np.abs(found - right).max() / np.abs(right).max())
    assert apart <= AGREES, f"answers differ by {apart:.1e}"
    return right


# -- the page --------------------------------------------------------------------------------------
def _show(data: Data) -> Page:
    tables, charts, claims, batch = [], [], [], data["batch"]
    layers = [_label(case, batch) for case in data["cases"]]
    for need, methods in (("w", _DW), ("x", _DX)):
        cases = [case[f"d{need}"] for case in data["cases"]]
        times = {
            m: [c["times"][m]["least"] if m in c["times"] else None for c in cases]
            for m in (*methods, _TORCH)
        }
        shown = [m for m in times if any(times[m])]
        sizes = {m: [c["bytes"].get(m) for c in cases] for m in methods}
        tables.append(_sizes(f"d{need}", layers, sizes, batch))
        rows = [
            [name, *(milliseconds(c["times"][m]) if m in c["times"] else "-" for m in shown)]
            for name, c in zip(layers, cases, strict=True)
        ]
        heads = ["", *(m if m == _TORCH else f"`{m}`" for m in shown)]
        what = "ms of CPU time" if data["cpu_time"] else "ms"
        text = f"d{need}, batch {batch}, {what}: the least of the turns, in brackets quartiles."
        tables.append(Table(text, heads, rows))
        base = _MEC if need == "w" else _DX[1]
        charts.append(
            Chart(
                f"d{need}",
                f"Run time of d{need} of cv1 to cv12 over MEC's, batch {batch}",
                layers,
                [(m, over(times[m], times[base])) for m in shown if m != base],
            )
        )
        if need == "w":
            claims += _claims(batch, sizes, times)
    return Page(tables, claims, charts)


def _label(case: Data, batch: int) -> str:
    same = case["batch"] == batch
    return str(case["layer"]) if same else f"{case['layer']} ({case['batch']} images)"


def _sizes(
    what: str, layers: Sequence[str], sizes: dict[str, list[int | None]], batch: int
) -> Table:
    rows = [
        [name, *(mebibytes(size[number]) for size in sizes.values())]
        for number, name in enumerate(layers)
    ]
    text = f"Workspace of {what}, batch {batch}, MiB."
    if what == "dx":
        text += " Packed weights, which are data here, are in it."
    return Table(text, ["", *(f"`{m}`" for m in sizes)], rows)


def _claims(
    batch: int, sizes: dict[str, list[int | None]], times: dict[str, list[float | None]]
) -> list[Claim]:
    by_bytes = [r for r in over(sizes[_BATCH], sizes[_MEC]) if r]
    by_time = [r for r in over(times[_IMAGE], times[_MEC]) if r]
    direct = [r for r in over(times[_MEC], times["direct"]) if r]
    claims = [
        Claim(
            f"dw, im2col over MEC, memory, batch {batch}",
            "up to 3.4, mean 3.2 (forward)",
            f"{min(by_bytes):.2f} to {max(by_bytes):.2f}, geometric {geometric_mean(by_bytes):.2f}",
            ratio(geometric_mean(by_bytes), 3.2),
            "the lowered tensors of the whole batch, with each thread's sums and pixels of dy",
        ),
        Claim(
            f"dw, im2col (an image at a time) over MEC, time, batch {batch}",
            "1.2 (a phone), 8.8 (server), forward",
            f"{min(by_time):.2f} to {max(by_time):.2f}, geometric {geometric_mean(by_time):.2f}",
            ratio(geometric_mean(by_time), 1.2 if batch == 1 else 8.8),
            "one product for both; the paper measures no backward pass",
        ),
        Claim(
            f"dw, MEC over direct, time, batch {batch}",
            "-",
            f"{min(direct):.2f} to {max(direct):.2f}, geometric {geometric_mean(direct):.2f}",
            "",
            "direct copies pixels into strips that stay in caches, and lowers nothing",
        ),
    ]
    theirs = [r for r in over(times[_TORCH], times[_MEC]) if r]
    if theirs:
        claims.append(
            Claim(
                f"dw, torch (channels last) over MEC, time, batch {batch}",
                "-",
                f"{min(theirs):.2f} to {max(theirs):.2f}, geometric {geometric_mean(theirs):.2f}",
                "",
                "above 1, MEC is faster",
            )
        )
    return claims


FIGURES = (
    Figure("mec-training-1", "MEC, training on a phone", "Gradients at batch 1",
           lambda effort: _measure(effort, 1), _show, minutes=0.4),
    Figure("mec-training-32", "MEC, training on a server", "Gradients at batch 32",
           lambda effort: _measure(effort, 32), _show, minutes=0.9),
)  # fmt: skip
