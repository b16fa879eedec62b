"""Convolutions and MobileNetV2 on this machine's GPU against cuDNN and cuBLAS through torch.

    python benchmarks/gpu.py [--out docs/results] [--seconds 460]

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
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpu_codes import compile_all, conv_codes, network_codes
from gpu_layers import LAYERS, MODES, NAMES
from gpu_methods import ABLATION, METHODS, Methods
from gpu_networks import REPORT_SIZE, Networks, mobilenet
from gpu_page import FIGURES, PARTS, Row, table
from gpu_supervisor import Job, perform, supervised
from leanconv.cli.engines import machine
from leanconv.errors import SpecError
from leanconv.gpu.device.driver import driver
from leanconv.gpu.launch import Code
from leanconv.gpu.machine import Machine, machine_of
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, DType, Precision

SECONDS = 460.0
COMPILING = 130.0  # seconds at most for all kernels
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


class Bench(Methods, Networks):
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
            if number == 2:
                yield "depthwise", "copy", self.copy
                for problem in DEPTHWISE:
                    for dtype in (FLOAT32, FLOAT16):
                        yield (
                            "depthwise",
                            f"{problem} {dtype}",
                            partial(self.depthwise, problem, dtype),
                        )
                for name in NAMES:
                    yield "methods", name, partial(self.methods, name)
                for name in NAMES:
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
                    codes += self.method_codes(spec, gpu)
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

    @staticmethod
    def method_codes(spec: ConvSpec, gpu: Machine) -> list[Code]:
        """The kernels of every method that takes a layer."""
        codes = []
        forms = tuple((form, None) for form in ABLATION)
        for algorithm, precision in dict.fromkeys((*METHODS, *forms)):
            if algorithm != "fft":
                with contextlib.suppress(SpecError):
                    codes += conv_codes(spec, precision, algorithm, gpu)
        return codes

    # -- the rest ----------------------------------------------------------------------------
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


def measure(folder: Path, seconds: float) -> Row:
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
    supervised(result, save, command, seconds)
    save()
    return result


def main() -> int:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    given = parser.parse_args()
    if given.worker:
        return worker(given.skip, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    print(table(measure(given.out, given.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
