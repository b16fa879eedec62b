"""Convolutions and MobileNetV2 on this machine's GPU against cuDNN and cuBLAS through torch.

    python benchmarks/gpu.py [--out docs/results]

Checks, measures, and writes `gpu.json` and `gpu.md`, in under eight minutes: what no time is left
for is written down as not measured. Where there is no GPU (or no torch for CUDA), the files say
"not yet measured" for each figure. Compared with are both memory layouts of torch with
`cudnn.benchmark`, the best of which counts, and im2col + cuBLAS (`unfold` and `matmul`).

Everything runs in a process beside this one, job after job, what matters most first. A job that
fails is written down; if it takes its process with it, or says nothing for too long, the next
process goes on behind it. Both files are written anew after every row.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import leanconv as lc
from gpu_codes import compile_all, conv_codes, network_codes
from gpu_networks import REPORT_SIZE, Networks, mobilenet
from gpu_page import FIGURES, PARTS, Row, table
from gpu_supervisor import Job, perform, said, supervised
from leanconv.cli.engines import machine
from leanconv.gpu.device.driver import driver
from leanconv.gpu.machine import machine_of
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, DType, Precision

SECONDS = 460.0
COMPILING = 130.0  # seconds at most for all kernels
NAMES = tuple(f"cv{number}" for number in range(1, 13))
MODES: dict[str, tuple[DType, str | None]] = {
    "fp32": (FLOAT32, None),
    "tf32": (FLOAT32, "tf32"),
    "fp16": (FLOAT16, None),
}
# What matters most first.
LAYERS = ((128, "fp32"), (128, "fp16"), (1, "fp32"), (128, "tf32"), (1, "fp16"), (1, "tf32"))
IM2WIN = ("im2win", "im2win:form=high")
ABLATED = ("cv9", "cv12")
ABLATION = (
    "im2win:form=high",
    "im2win:prefetch=0",
    "im2win:double=0",
    "im2win:vector=0",
    "im2win:micro=0",
    "im2win:form=basic",
)
# MobileNetV2's, of a batch that the L2 cache does not hold.
DEPTHWISE = (
    "g32mb128ic32ih112oc32oh112kh3ph1",
    "g96mb128ic96ih112oc96oh56kh3sh2ph1",
    "g144mb128ic144ih56oc144oh56kh3ph1",
    "g192mb128ic192ih28oc192oh28kh3ph1",
    "g384mb128ic384ih14oc384oh14kh3ph1",
    "g960mb256ic960ih7oc960oh7kh3ph1",
)
BATCHES = (1, 128)  # of MobileNetV2
FORMS: tuple[tuple[DType, str | None], ...] = (
    (FLOAT32, None),
    (FLOAT32, "tf32"),
    (FLOAT16, None),
)
COPIED = 1 << 28  # elements


class Bench(Networks):
    """Everything that is measured on one device; arguments as of `Stopwatch`."""

    def jobs(self) -> Iterator[Job]:
        """Everything, what matters most first; the order never changes."""
        yield "compile", "all kernels", self.compiled
        for batch in BATCHES:
            for dtype, precision in FORMS:
                yield (
                    "networks",
                    f"MobileNetV2 batch {batch} {precision or dtype}",
                    partial(self.network, batch, dtype, precision),
                )
        yield "networks", "MobileNetV2 float64", partial(self.network, 1, FLOAT64, None)
        for batch in BATCHES:
            yield "networks", f"torch batch {batch}", partial(self.torch_network, batch)
        for number, (batch, mode) in enumerate(LAYERS):
            for name in NAMES:
                yield (
                    "layers",
                    f"{name} batch {batch} {mode}",
                    partial(self.layer, name, batch, mode),
                )
            if number == 0:
                yield "depthwise", "copy", self.copy
                for problem in DEPTHWISE:
                    for dtype in (FLOAT32, FLOAT16):
                        yield (
                            "depthwise",
                            f"{problem} {dtype}",
                            partial(self.depthwise, problem, dtype),
                        )
                for name in ABLATED:
                    yield "ablation", name, partial(self.ablation, name)
        for batch in BATCHES:
            yield "networks", f"torch.compile {batch}", partial(self.torch_compiled, batch)

    # -- before ------------------------------------------------------------------------------
    def compiled(self) -> Iterator[Row]:
        """All kernels, on all cores."""
        used = driver(0)
        gpu = machine_of(used)
        codes = []
        for batch, mode in LAYERS:
            dtype, precision = MODES[mode]
            for name in NAMES:
                spec = replace(layer(name, batch), precision=Precision.of(dtype), layout="NHWC")
                codes += conv_codes(spec, precision, None, gpu)
                if (batch, mode) == LAYERS[0]:
                    for algorithm in (*IM2WIN, *(ABLATION if name in ABLATED else ())):
                        codes += conv_codes(spec, None, algorithm, gpu)
        for problem in DEPTHWISE:
            for dtype in (FLOAT32, FLOAT16):
                spec = ConvSpec.parse(problem, layout="NHWC", dtype=dtype)
                codes += conv_codes(spec, None, None, gpu)
        for batch in BATCHES:
            for dtype, precision in FORMS:
                shape = (batch, 3, 224, 224)
                codes += network_codes(mobilenet(224, 224), shape, dtype, precision, gpu)
        shape = (1, 3, *REPORT_SIZE)
        codes += network_codes(mobilenet(*REPORT_SIZE), shape, FLOAT64, None, gpu)
        yield dict(compile_all(codes, used.arch, min(COMPILING, self.left() / 3)))

    # -- single layers -----------------------------------------------------------------------
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
        if (batch, mode) == LAYERS[0]:
            self.explicit(spec, x, w, row)
        yield row

    def own(self, spec: ConvSpec, precision: str | None, x: Any, w: Any, row: Row) -> None:
        """Our plan."""
        plan = self.plan(spec, w, precision=precision)
        held = self.ours(x)
        y = self.torch.from_dlpack(plan(held))
        self.torch.cuda.synchronize()
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

        best: list[tuple[float, int, float]] = []
        for label, given, weights in (
            ("nchw", first.contiguous(), w),
            ("nhwc", first, w.contiguous(memory_format=torch.channels_last)),
        ):

            def run(a: Any = given, b: Any = weights) -> Any:
                return conv(a, b, stride=spec.stride)

            try:
                found = timed(run), self.peak_bytes(run)
                row[f"cudnn_{label}_ms"] = found[0]
                best.append((*found, self.error(spec, x, w, run().permute(0, 2, 3, 1))))
            except Exception as error:
                row[f"cudnn_{label}_failure"] = said(error)
        if best:
            row["cudnn_ms"], row["cudnn_extra_bytes"], row["cudnn_error"] = min(best)
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

    def explicit(self, spec: ConvSpec, x: Any, w: Any, row: Row) -> None:
        """im2win with its tensor stored: in the fastest arithmetic, and as the thesis has it."""
        for algorithm in IM2WIN:
            try:
                plan, held = self.plan(spec, w, algorithm=algorithm), self.ours(x)
                y = plan(held)
                row[f"{algorithm}_ms"] = self.milliseconds(plan.start)
                row["im2win_extra_bytes"] = plan.memory_bytes
                del y, plan
            except Exception as error:
                row[f"{algorithm}_failure"] = said(error)

    def error(self, spec: ConvSpec, x: Any, w: Any, y: Any) -> float:
        """Relative error of the first and the last image against float64."""
        worst = 0.0
        for image in {0, spec.batch - 1}:
            exact = self.torch.nn.functional.conv2d(
                x[image : image + 1].permute(0, 3, 1, 2).double(), w.double(), stride=spec.stride
            )
            found = y[image : image + 1].permute(0, 3, 1, 2).double()
            worst = max(worst, float((found - exact).abs().max() / exact.abs().max()))
        return worst

    # -- the rest ----------------------------------------------------------------------------
    def ablation(self, name: str) -> Iterator[Row]:
        """Figure 4-9 of the thesis: its kernel without one of its parts."""
        spec = replace(layer(name, 128), layout="NHWC")
        x = self.ours(self.torch.randn(spec.input_shape, device=self.device))
        w = self.torch.randn(spec.weight_shape, device=self.device)
        for algorithm in ABLATION:
            plan = self.plan(spec, w, algorithm=algorithm)
            y = plan(x)
            yield {"layer": name, "form": algorithm, "ms": self.milliseconds(plan.start)}
            del y, plan

    def copy(self) -> Iterator[Row]:
        """Bytes a second of a copy."""
        a = self.torch.empty(COPIED, device=self.device)
        b = self.torch.empty_like(a)
        self.copied = 2 * a.numel() * 4 / self.milliseconds(lambda: b.copy_(a)) / 1e6
        yield {"problem": "copy", "gb_per_s": self.copied}

    def depthwise(self, problem: str, dtype: DType) -> Iterator[Row]:
        """Bytes a second of a depthwise layer."""
        if not hasattr(self, "copied"):  # another process has measured it
            list(self.copy())
        spec, kind = ConvSpec.parse(problem, layout="NHWC", dtype=dtype), getattr(self.torch, dtype)
        x = self.torch.randn(spec.input_shape, device=self.device, dtype=kind)
        w = self.torch.randn(spec.weight_shape, device=self.device, dtype=kind)
        plan, held = self.plan(spec, w), self.ours(x)
        y = plan(held)
        ms = self.milliseconds(plan.start)
        rate = (spec.input_bytes + spec.output_bytes) / ms / 1e6
        row: Row = {"problem": problem, "dtype": dtype, "ms": ms, "gb_per_s": rate}
        row["of_copy"] = rate / self.copied
        del y
        first = x.permute(0, 3, 1, 2)
        weights = w.contiguous(memory_format=self.torch.channels_last)
        row["cudnn_ms"] = self.milliseconds(
            lambda: self.torch.nn.functional.conv2d(
                first, weights, stride=spec.stride, padding=spec.pad_begin, groups=spec.groups
            )
        )
        yield row


# -- in a process of its own -------------------------------------------------------------------


def worker(skip: int, seconds: float) -> int:
    """What the process beside the first one does: lines of JSON."""
    import torch

    def say(row: Row) -> None:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()

    bench = Bench(torch, seconds=seconds)
    say(facts(torch))
    perform(bench.jobs(), bench.left, skip, say)
    return 0


def facts(torch: Any) -> Row:
    """The device and what runs on it."""
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return {"device": torch.cuda.get_device_name(), "versions": versions}


def measure(folder: Path) -> Row:
    """Everything, or "not yet measured" for each figure and why."""
    host = machine.describe().to_json()
    result: Row = {"date": datetime.date.today().isoformat(), "machine": host}

    def save() -> None:
        text = json.dumps(result, indent=1) + "\n"
        (folder / "gpu.json").write_text(text, encoding="utf-8")
        (folder / "gpu.md").write_text(table(result), encoding="utf-8")

    try:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device")
    except (ImportError, RuntimeError) as error:
        result.update({"reason": str(error), **dict.fromkeys(FIGURES, "not yet measured")})
        save()
        return result
    result.update({"device": "unknown", **{part: [] for part in PARTS}})
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    supervised(result, save, command, SECONDS)
    save()
    return result


def main() -> int:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return worker(given.skip, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    print(table(measure(given.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
