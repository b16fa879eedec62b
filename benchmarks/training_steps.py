"""A training step of torch, by its own convolutions and by those of `leanconv.torch.replace`.

    TORCH_PYTHON benchmarks/training_steps.py --record training_steps     all nets, one thread
    TORCH_PYTHON benchmarks/training_steps.py "digits b32"                these alone (`--list`)

The Python is one that has torch, NumPy and llvmlite. A step is the loss, its gradients and SGD with
momentum, on one batch of random images; torch does all but the convolutions. Each of the four
(torch and leanconv, contiguous and channels last) has a process of its own, a new one for each net.
They are measured in turns by the CPU time of the process; a ratio is torch's faster format over
leanconv's faster format in the same round, and what is printed is the median of rounds.

Memory is how far the process grows beyond what was resident (VmRSS) once everything is imported and
the model and the batch are there. Before what is measured the high-water mark (VmHWM) is set back
by writing 5 to /proc/self/clear_refs. `planning` is the peak of the first step, in which leanconv
makes its plans, `step` the peak of five steps that follow five others. Gradients, momentum, saved
tensors, workspaces, plans, compiled code and pages of libraries that run for the first time all
count, for both alike.

The last row is no step: the microseconds of a call of an 8-channel layer without gradients, of
which nearly all is overhead. Exit code 3: a net is below what it must reach.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import ROOT, Document, Peers, Run, add_record_option, effort, script, write_results
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.errors import InputError
from pages.training_steps import page

THEIRS, OURS = ("torch", "torch nhwc"), ("leanconv", "leanconv nhwc")
CALLS = ("torch", "leanconv operator", "leanconv function")
_STEPS = 5  # before the peak of steps is measured, and while it is


@dataclass(frozen=True)
class Net:
    """A network that is trained, with a batch of its images.

    Attributes:
        make: the module.
        channels: of an image of 32 x 32.
        batch: images.
        ratio: what torch's time must be of leanconv's.
    """

    make: Callable[[], nn.Module]
    channels: int
    batch: int
    ratio: float


class Residual(nn.Module):  # type: ignore[misc, unused-ignore]
    """The basic block of ResNet: two 3x3, and a 1x1 beside them where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            beside = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.beside = nn.Sequential(beside, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(n, inputs, h, w)` to `(n, outputs, h / stride, w / stride)`."""
        return torch.relu(self.body(x) + self.beside(x))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32 x 32: a 3x3 in the place of the 7x7 and the pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def digits() -> nn.Module:
    """The MobileNetV2 of `examples/digits`."""
    sys.path.insert(0, str(ROOT))
    from examples.digits.net import DigitNet

    return DigitNet()


NETS = {
    "ResNet-18 b8": Net(resnet18, 3, 8, 1.5),
    "ResNet-18 b32": Net(resnet18, 3, 32, 1.5),
    "digits b32": Net(digits, 1, 32, 1.25),
}


def trained(name: str, engine: str, threads: int) -> tuple[Run, Any]:
    """A step of a net by an engine of this process, and the peaks of the first ones, bytes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    form = torch.channels_last if engine.endswith("nhwc") else torch.contiguous_format
    model = NETS[name].make()
    if engine in OURS:
        import leanconv.torch

        leanconv.torch.replace(model)
    model = model.to(memory_format=form)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    x = torch.randn(NETS[name].batch, NETS[name].channels, 32, 32).contiguous(memory_format=form)
    labels = torch.arange(len(x)) % 10

    def step() -> float:
        loss = functional.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    gc.collect()
    before = status_bytes("VmRSS")
    found: Document = {"before": before}
    for kind, count in (("planning", 1), ("", _STEPS - 1), ("step", _STEPS)):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        for _ in range(count):
            step()
        if kind:
            found[kind] = status_bytes("VmHWM") - before
    return step, found


def status_bytes(name: str) -> int:
    """A number of bytes that the system says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def called(_: object, engine: str, threads: int) -> tuple[Run, Any]:
    """A call of an 8-channel 3x3 layer on 6 x 6 without gradients."""
    import leanconv.torch

    torch.set_num_threads(threads)
    calls: Mapping[str, Callable[..., Tensor]] = {
        "torch": functional.conv2d,
        "leanconv operator": torch.ops.leanconv.conv2d,
        "leanconv function": leanconv.torch.conv2d,
    }
    x, w, call = torch.randn(1, 8, 6, 6), torch.randn(8, 8, 3, 3), calls[engine]
    padding = (1, 1)

    def run() -> float:
        with torch.no_grad():
            for _ in range(100):
                call(x, w, None, (1, 1), padding, (1, 1), 1)
        return 0.0

    return run, torch.__version__


def step_row(name: str, options: argparse.Namespace) -> Document:
    """What was measured of a net: milliseconds and bytes by engine, ratios."""
    engines: dict[str, Callable[[str], tuple[Run, Any]]] = {
        each: partial(trained, engine=each, threads=options.threads) for each in (*THEIRS, *OURS)
    }
    peers = Peers(engines, time.process_time)
    said: dict[str, Any] = {each: peers.prepare(each, name)[0] for each in engines}
    times = peers.times(engines, options.rounds, options.seconds)
    peers.stop()
    rounds = zip(*times.values(), strict=True)
    ratios = [min(t, t_last) / min(own, own_last) for t, t_last, own, own_last in rounds]
    ms = {each: 1e3 * statistics.median(of) for each, of in times.items()}
    fastest = min(OURS, key=ms.__getitem__)
    found = {"name": name, "ms": ms, "ratios": ratios, "ratio": statistics.median(ratios)}
    found |= {"said": said, "fastest": fastest, "must": NETS[name].ratio}
    lean = said[fastest]["step"] <= min(said[each]["step"] for each in THEIRS)
    return {**found, "lean": lean, "reached": lean and found["ratio"] >= found["must"]}


def call_row(options: argparse.Namespace) -> Document:
    """Microseconds of a call, by who is called."""
    engines = {each: partial(called, engine=each, threads=options.threads) for each in CALLS}
    peers = Peers(engines, time.process_time)
    said = [peers.prepare(each, None)[0] for each in engines]
    times = peers.times(engines, options.rounds, min(0.2, options.seconds))
    peers.stop()
    us = {each: 1e4 * statistics.median(of) for each, of in times.items()}
    return {"us": us, "torch": said[0], "ratio": us[CALLS[1]] / us[CALLS[0]], "must": 2.0}


def line(row: Document) -> str:
    """A row for people."""
    texts = [
        f"{each} {row['ms'][each]:.1f} ms, {said['step'] / 2**20:.0f} MiB "
        f"(planning {said['planning'] / 2**20:.0f})"
        for each, said in row["said"].items()
    ]
    return f"{row['ratio']:5.2f}  {row['name']:14} {'; '.join(texts)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", metavar="NET", help="names; see --list")
    parser.add_argument("--list", action="store_true", help="name the nets")
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    add_record_option(parser)
    options = parser.parse_args(arguments)
    if options.list:
        print(*NETS, sep="\n")
        return 0
    unknown = sorted(set(options.nets) - NETS.keys())
    if unknown:
        raise InputError(f"nets {unknown} are not known; expected {', '.join(NETS)}")
    document: Document = {"machine": machine.describe().to_json(), "effort": effort(options)}
    document["busy_cpus_before"] = round(machine.busy_cpus(), 2)
    document["rows"] = rows = list[Document]()
    for name in options.nets or NETS:
        rows.append(step_row(name, options))
        print(line(rows[-1]), flush=True)
    document["calls"] = calls = call_row(options)
    texts: dict[str, Any] = {each: f"{us:.1f} us" for each, us in calls["us"].items()}
    print(f"{calls['ratio']:5.2f}  a call         {texts}")
    write_results(document, options.out, page)
    reached = all(row["reached"] for row in rows) and calls["ratio"] <= calls["must"]
    return 0 if reached else EXIT_NOT_MET


if __name__ == "__main__":
    script(main)
