"""The twelve layers on a GPU: ours, cuDNN, and im2col with cuBLAS; for `gpu.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import leanconv as lc
from gpu_page import Row
from gpu_stopwatch import Stopwatch
from gpu_supervisor import said
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT16, FLOAT32, DType, Precision

NAMES = tuple(f"cv{number}" for number in range(1, 13))
MODES: dict[str, tuple[DType, str | None]] = {
    "fp32": (FLOAT32, None),
    "tf32": (FLOAT32, "tf32"),
    "fp16": (FLOAT16, None),
}
# What matters most first.
LAYERS = ((128, "fp32"), (128, "fp16"), (1, "fp32"), (128, "tf32"), (1, "fp16"), (1, "tf32"))
PROFILED = LAYERS[:2]  # whose kernels of cuDNN are written down
_COMPARED = 16  # images at a time, in float64


class Layers(Stopwatch):
    """Single layers; arguments as of `Stopwatch`."""

    def layer(self, name: str, batch: int, mode: str) -> Iterator[Row]:
        """One layer: ours, cuDNN in both layouts, im2col + cuBLAS; times, memory, errors."""
        torch, (dtype, precision) = self.torch, MODES[mode]
        spec = replace(layer(name, batch), precision=Precision.of(dtype), layout="NHWC")
        kind = getattr(torch, dtype)
        allowed = mode == "tf32"
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.cuda.empty_cache()
        x = torch.randn(spec.input_shape, device=self.device, dtype=kind)
        w = torch.randn(spec.weight_shape, device=self.device, dtype=kind) / spec.reduction**0.5
        row: Row = {"layer": name, "batch": batch, "mode": mode, "problem": str(spec)}
        try:
            self.own(spec, precision, x, w, row)
        except Exception as error:  # the others are measured all the same
            row["failure"] = said(error)
        self.rivals(spec, x, w, row)
        yield row

    def own(self, spec: ConvSpec, precision: str | None, x: Any, w: Any, row: Row) -> None:
        """Our plan."""
        begun = time.perf_counter()
        plan = self.plan(spec, w, precision=precision)
        row["planning_s"] = time.perf_counter() - begun
        held = self.ours(x)
        y = self.torch.from_dlpack(plan(held))
        self.torch.cuda.synchronize()
        row["first_run_s"] = time.perf_counter() - begun - row["planning_s"]
        row["plan"] = f"{plan.algorithm} {plan.arithmetic} {plan.parameters}"
        row["error"] = self.error(spec, x, w, y)
        run = plan.record().run if spec.batch == 1 else plan.start
        row["ms"] = self.milliseconds(run)
        row["tflops"] = spec.flops / row["ms"] / 1e9
        row["extra_bytes"] = plan.memory_bytes - spec.weight_bytes

    def plan(self, spec: ConvSpec, w: Any, **options: Any) -> Any:
        """A plan of leanconv for a spec with NHWC arrays."""
        return lc.plan_conv2d(
            spec.input_shape,
            self.ours(w),
            stride=spec.stride,
            padding=(*spec.pad_begin, *spec.pad_end),
            groups=spec.groups,
            layout="NHWC",
            device="cuda",
            **options,
        )

    def rivals(self, spec: ConvSpec, x: Any, w: Any, row: Row) -> None:
        """torch's convolutions, and unfold with matmul; of one image from graphs, as ours."""
        conv, torch = self.torch.nn.functional.conv2d, self.torch
        first = x.permute(0, 3, 1, 2)

        def timed(run: Callable[[], Any]) -> float:
            if spec.batch == 1:
                with contextlib.suppress(RuntimeError):  # what cannot be recorded runs as it is
                    return self.milliseconds(self.recorded(run))
            return self.milliseconds(run)

        best: list[tuple[float, int, float, list[str]]] = []
        for label, given, weights in (
            ("nchw", first.contiguous(), w),
            ("nhwc", first, w.contiguous(memory_format=torch.channels_last)),
        ):

            def run(a: Any = given, b: Any = weights) -> Any:
                return conv(a, b, stride=spec.stride)

            try:
                found = timed(run), self.peak_bytes(run)
                row[f"cudnn_{label}_ms"] = found[0]
                profiled = (spec.batch, row["mode"]) in PROFILED
                kernels = self.kernels(run) if profiled else []
                wrong = self.error(spec, x, w, run().permute(0, 2, 3, 1))
                best.append((*found, wrong, kernels))
            except Exception as error:
                row[f"cudnn_{label}_failure"] = said(error)
        if best:
            row["cudnn_ms"], row["cudnn_extra_bytes"], row["cudnn_error"], kernels = min(best)
            row["cudnn_kernels"] = kernels[:2]
            if "ms" in row:
                row["ratio"] = row["cudnn_ms"] / row["ms"]
        plain = first.contiguous()

        def unfolded() -> Any:
            columns = torch.nn.functional.unfold(plain, spec.kernel, stride=spec.stride)
            return torch.matmul(w.reshape(spec.out_channels, -1), columns)

        try:
            row["im2col_ms"] = timed(unfolded)
            row["im2col_extra_bytes"] = self.peak_bytes(unfolded)
        except Exception as error:  # out of memory, or an index over 2^31
            row["im2col_ms"] = row["im2col_extra_bytes"] = None
            row["im2col_failure"] = said(error)

    def error(self, spec: ConvSpec, x: Any, w: Any, y: Any) -> float:
        """Relative error against float64, of all images: a race may spoil any of them."""
        worst = 0.0
        for first in range(0, spec.batch, _COMPARED):
            some = slice(first, first + _COMPARED)
            exact = self.torch.nn.functional.conv2d(
                x[some].permute(0, 3, 1, 2).double(), w.double(), stride=spec.stride
            )
            found = y[some].permute(0, 3, 1, 2).double()
            worst = max(worst, float((found - exact).abs().max() / exact.abs().max()))
        return worst
