"""Convolutions and MobileNetV2 on this machine's GPU against cuDNN and cuBLAS through torch.

    python benchmarks/gpu.py [--out docs/results]

Checks, measures, and writes `gpu.json` and `gpu.md`, in under eight minutes: what no time is left
for is written down as not measured. Where there is no GPU (or no torch for CUDA), the files say
"not yet measured" for each figure. Compared with are both memory layouts of torch with
`cudnn.benchmark`, the best of which counts, and im2col + cuBLAS (`unfold` and `matmul`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from harness import model_file
from leanconv.errors import LeanConvError
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec

SECONDS = 460.0
NAMES = tuple(f"cv{number}" for number in range(1, 13))
MODES: dict[str, tuple[str, str | None]] = {
    "fp32": ("float32", None),
    "tf32": ("float32", "tf32"),
    "fp16": ("float16", None),
}
ABLATION = (
    "im2win:form=high",
    "im2win:prefetch=0",
    "im2win:vector=0",
    "im2win:micro=0",
    "im2win:form=basic",
)
DEPTHWISE = ("g96mb32ic96ih112oc96oh112kh3ph1", "g144mb32ic144ih56oc144oh28kh3sh2ph1")
FIGURES = (
    "fp32-accurate error on the twelve layers",
    "fp32-accurate time over cuDNN's strict fp32, batch 128 and 1",
    "TF32 and fp16 time over cuDNN's",
    "memory beyond the tensors against im2col + cuBLAS and cuDNN",
    "explicit im2win over im2col + cuBLAS, and its ablation",
    "depthwise layers in GB/s against a copy",
    "MobileNetV2 batch 1 and 128 against torch eager, graphs and compile",
    "MobileNetV2 in float64, 10 images of 244x244, against the report's 7.78 ms",
)
REPORT_SIZE = (244, 244)
BATCHES = (1, 128)  # of MobileNetV2
COPIED = 1 << 28  # elements
Row = dict[str, Any]


def _same(array: Any) -> Any:
    return array


class Bench:
    """Everything that is measured on one device.

    Args:
        torch: the module.
        device: where torch computes.
        ours: a tensor as leanconv takes it. With a device, itself; a rehearsal without one hands
            NumPy arrays to a driver that only records (`tests/gpu/test_gpu_bench.py`).
    """

    def __init__(
        self, torch: Any, device: str = "cuda", ours: Callable[[Any], Any] = _same
    ) -> None:
        self.torch, self.device, self.ours = torch, device, ours
        self.end = time.monotonic() + SECONDS
        torch.backends.cudnn.benchmark = True

    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Time of a run, the median of up to 20 rows of them, in some 0.3 s.

        Short runs stand in rows of 20, so that waiting for the device does not count.
        """
        wait = self.torch.cuda.synchronize

        def row(count: int) -> float:
            start = time.perf_counter_ns()
            for _ in range(count):
                run()
            wait()
            return (time.perf_counter_ns() - start) / 1e6 / count

        run()
        wait()
        count = 20 if row(1) < 1.0 else 1
        times: list[float] = []
        begun = time.monotonic()
        while len(times) < 3 or (len(times) < 20 and time.monotonic() - begun < 0.3):
            times.append(row(count))
        return statistics.median(times)

    def peak_bytes(self, run: Callable[[], Any]) -> int:
        """Bytes that torch takes during a run beyond its result."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        held = result.numel() * result.element_size()
        return int(torch.cuda.max_memory_allocated() - before - held)

    # -- single layers -----------------------------------------------------------------------
    def layer(self, name: str, batch: int, mode: str) -> Row:
        """One layer: ours, cuDNN in both layouts, im2col + cuBLAS; times, memory, errors."""
        torch, (dtype, precision) = self.torch, MODES[mode]
        spec = replace(layer(name, batch), dtype=dtype, layout="NHWC")
        kind = getattr(torch, dtype)
        allowed = mode == "tf32"
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cuda.matmul.allow_tf32 = allowed
        x = torch.randn(spec.input_shape, device=self.device, dtype=kind)
        w = torch.randn(spec.weight_shape, device=self.device, dtype=kind) / spec.reduction**0.5
        plan: Any = lc.plan_conv2d(
            spec.input_shape,
            self.ours(w),
            stride=spec.stride,
            layout="NHWC",
            device="cuda",
            precision=precision,
        )
        y = torch.from_dlpack(plan(self.ours(x)))
        torch.cuda.synchronize()
        row: Row = {"layer": name, "batch": batch, "mode": mode, "problem": str(spec)}
        row["plan"] = f"{plan.algorithm} {plan.arithmetic} {plan.parameters}"
        row["error"] = self.error(spec, x, w, y)
        row["ms"] = self.milliseconds(plan.start)
        row["tflops"] = spec.flops / row["ms"] / 1e9
        row["extra_bytes"] = plan.memory_bytes - spec.weight_bytes
        self.rivals(spec, x, w, row)
        return row

    def rivals(self, spec: ConvSpec, x: Any, w: Any, row: Row) -> None:
        """torch's convolutions, and unfold with matmul."""
        conv = self.torch.nn.functional.conv2d
        first = x.permute(0, 3, 1, 2)
        best: list[tuple[float, int, float]] = []
        for given, weights in (
            (first.contiguous(), w),
            (first, w.contiguous(memory_format=self.torch.channels_last)),
        ):

            def run(a: Any = given, b: Any = weights) -> Any:
                return conv(a, b, stride=spec.stride)

            found = self.milliseconds(run), self.peak_bytes(run)
            best.append((*found, self.error(spec, x, w, run().permute(0, 2, 3, 1))))
        row["cudnn_ms"], row["cudnn_extra_bytes"], row["cudnn_error"] = min(best)
        row["ratio"] = row["cudnn_ms"] / row["ms"]
        plain = first.contiguous()

        def unfolded() -> Any:
            columns = self.torch.nn.functional.unfold(plain, spec.kernel, stride=spec.stride)
            return self.torch.matmul(w.reshape(spec.out_channels, -1), columns)

        try:
            row["im2col_ms"] = self.milliseconds(unfolded)
            row["im2col_extra_bytes"] = self.peak_bytes(unfolded)
        except RuntimeError as error:  # out of memory, or an index over 2^31
            row["im2col_ms"] = row["im2col_extra_bytes"] = None
            row["im2col_failure"] = str(error)[:120]

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

    def layers(self) -> Iterator[Row]:
        """All layers while time is left, the largest share of it for batch 128 in fp32."""
        for batch, mode in ((128, "fp32"), (1, "fp32"), (128, "fp16"), (128, "tf32")):
            for name in NAMES:
                if self.left() < 150:
                    yield {"layer": name, "batch": batch, "mode": mode, "skipped": "no time left"}
                    continue
                yield self.layer(name, batch, mode)
                self.torch.cuda.empty_cache()

    # -- the rest ----------------------------------------------------------------------------
    def ablation(self) -> Iterator[Row]:
        """Figure 4-9 of the thesis: its kernel without one of its parts."""
        for name in ("cv9", "cv12"):
            spec = replace(layer(name, 128), layout="NHWC")
            x = self.torch.randn(spec.input_shape, device=self.device)
            w = np.random.default_rng(0).standard_normal(spec.weight_shape).astype(np.float32)
            for algorithm in ABLATION:
                plan: Any = lc.plan_conv2d(
                    spec.input_shape, w, layout="NHWC", algorithm=algorithm, device="cuda"
                )
                plan(self.ours(x))
                yield {"layer": name, "form": algorithm, "ms": self.milliseconds(plan.start)}

    def depthwise(self) -> Iterator[Row]:
        """Bytes a second of depthwise layers, and of a copy."""
        a = self.torch.empty(COPIED, device=self.device)
        b = self.torch.empty_like(a)
        copied = 2 * a.numel() * 4 / self.milliseconds(lambda: b.copy_(a)) / 1e6
        yield {"problem": "copy", "gb_per_s": copied}
        for problem in DEPTHWISE:
            spec = ConvSpec.parse(problem, layout="NHWC")
            w = np.ones(spec.weight_shape, np.float32)
            plan: Any = lc.plan_conv2d(
                spec.input_shape,
                w,
                stride=spec.stride,
                padding=(*spec.pad_begin, *spec.pad_end),
                groups=spec.groups,
                layout="NHWC",
                device="cuda",
            )
            plan(self.ours(self.torch.randn(spec.input_shape, device=self.device)))
            rate = (spec.input_bytes + spec.output_bytes) / self.milliseconds(plan.start) / 1e6
            yield {"problem": problem, "gb_per_s": rate, "of_copy": rate / copied}

    def networks(self) -> Iterator[Row]:
        """MobileNetV2 in one graph, against torch in three ways; then the report's own setting."""
        import onnx

        from engines.onnx_to_torch import OnnxModule

        file = model_file("mobilenetv2")
        model = OnnxModule(onnx.load(file).graph).to(self.device).eval()
        for batch in BATCHES:
            x = self.torch.randn((batch, 3, 224, 224), device=self.device)
            for dtype, precision in ((None, None), (None, "tf32"), ("float16", None)):
                net: Any = lc.load(file, device="cuda", dtype=dtype, precision=precision)
                yield self.network(net, x.half() if dtype else x, dtype or "float32", precision)
            yield from self.torch_networks(model, x, batch)
        # The report's: ten images of 244x244 in double precision, 7.78 ms there.
        larger = onnx.load(file)
        for dim, extent in zip(
            larger.graph.input[0].type.tensor_type.shape.dim[2:], REPORT_SIZE, strict=True
        ):
            dim.dim_value = extent
        net = lc.load(larger, device="cuda", dtype="float64")
        shape = (10, 3, *REPORT_SIZE)
        yield self.network(net, self.torch.randn(shape, device=self.device).double(), "float64")

    def network(self, net: Any, x: Any, dtype: str, precision: str | None = None) -> Row:
        """A network of ours, from its graph."""
        held = self.ours(x)
        net(held)
        out = net.bound.memory.array((len(x), 1000), dtype)
        address = held.data_ptr() if hasattr(held, "data_ptr") else held.ctypes.data
        addresses = [address, out.address]
        for _ in range(2):
            net.bound.start(addresses)
        return {
            "batch": len(x),
            "size": tuple(x.shape[2:]),
            "engine": f"leanconv {precision or dtype}",
            "ms": self.milliseconds(lambda: net.bound.start(addresses)),
            "bytes": net.plan.memory_bytes,
            "launches": net.plan.launches,
        }

    def torch_networks(self, model: Any, x: Any, batch: int) -> Iterator[Row]:
        """torch by itself, from a graph, and compiled."""
        with self.torch.inference_mode():
            alone = self.milliseconds(lambda: model(x))
            yield {"batch": batch, "engine": "torch", "ms": alone}
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                model(x)
            yield {"batch": batch, "engine": "torch, graph", "ms": self.milliseconds(graph.replay)}
            if self.left() > 60:
                made = self.torch.compile(model, mode="reduce-overhead")
                compiled = self.milliseconds(lambda: made(x))
                yield {"batch": batch, "engine": "torch.compile", "ms": compiled}


def guarded(rows: Iterator[Row]) -> list[Row]:
    """All rows up to the first failure, which is written down."""
    found: list[Row] = []
    try:
        found.extend(rows)
    except (LeanConvError, RuntimeError, ImportError) as error:
        found.append({"failure": f"{type(error).__name__}: {error}"[:300]})
    return found


def measure() -> Row:
    """Everything, or "not yet measured" for each figure and why."""
    head: Row = {"date": datetime.date.today().isoformat()}
    try:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device")
    except (ImportError, RuntimeError) as error:
        return {**head, "reason": str(error), **dict.fromkeys(FIGURES, "not yet measured")}
    return {**head, **measured(Bench(torch), torch)}


def measured(bench: Bench, torch: Any) -> Row:
    """Every part, what matters most first."""
    head: Row = {}
    head["device"] = torch.cuda.get_device_name()
    head["versions"] = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return {
        **head,
        "networks": guarded(bench.networks()),
        "depthwise": guarded(bench.depthwise()),
        "ablation": guarded(bench.ablation()),
        "layers": guarded(bench.layers()),
    }


def table(result: Row) -> str:
    """The result as a page."""
    lines = ["# On a GPU", "", f"`python benchmarks/gpu.py`, {result['date']}"]
    lines.append(f"Device: {result.get('device', 'none')} {result.get('versions', '')}".strip())
    lines.append("")
    if "layers" not in result:
        lines += [f"- {figure}: not yet measured" for figure in FIGURES]
        return "\n".join([*lines, ""])
    for part in ("layers", "depthwise", "networks", "ablation"):
        lines += [f"## {part}", ""]
        lines += [f"- {', '.join(f'{k} {v}' for k, v in row.items())}" for row in result[part]]
        lines.append("")
    for mode in MODES:
        rows = [r for r in result["layers"] if r.get("mode") == mode and "ratio" in r]
        if rows:
            mean = exp(sum(log(r["ratio"]) for r in rows) / len(rows))
            least = min(r["ratio"] for r in rows)
            lines.append(f"{mode}: {mean:.2f} of cuDNN's speed (geometric mean), least {least:.2f}")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    folder: Path = parser.parse_args().out
    result = measure()
    (folder / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(table(result), encoding="utf-8")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
