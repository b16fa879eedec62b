"""Train the digit reader by PyTorch and with leanconv's convolutions, side by side.

    python examples/digits/compare_training.py --steps 200

Both start from the same weights and see the same images. Each runs in a process of its own; printed
are the losses, the time of a step (the median, after the first three, in which leanconv plans) and
the most memory that the process had. It needs torch, scikit-learn and Pillow.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812  (torch's own habit)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.digits.data import load_split  # noqa: E402
from examples.digits.net import DigitNet  # noqa: E402
from examples.digits.train import accuracy, augmented, scaled  # noqa: E402

ENGINES = ("torch", "torch channels_last", "leanconv", "leanconv channels_last")
_PLANNING = 3  # steps in which plans are made


@dataclass(frozen=True)
class Training:
    """What a training run gave.

    Attributes:
        losses: one of each step.
        step_ms: the median time of a step.
        peak_mib: the most memory that the process had, PyTorch and the data included.
        accuracy: the share of held-out images that is read correctly.
    """

    losses: list[float]
    step_ms: float
    peak_mib: float
    accuracy: float


def train(engine: str, steps: int, batch: int, threads: int, seed: int = 1) -> Training:
    """Train with AdamW in this process.

    Args:
        engine: one of `ENGINES`.
        steps, batch: how many steps, and images in each.
        threads: of PyTorch, which leanconv takes, too.
        seed: of weights and images.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = DigitNet()
    if engine.startswith("leanconv"):
        import leanconv.torch

        leanconv.torch.replace(net)
    form = torch.channels_last if engine.endswith("last") else torch.contiguous_format
    net = net.to(memory_format=form)
    training, held_out = load_split()
    images, labels = scaled(training.images), torch.from_numpy(training.labels)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
    losses, times = [], []
    for _ in range(steps):
        index = torch.randint(len(labels), (batch,), generator=generator)
        x = augmented(images[index], generator).contiguous(memory_format=form)
        begin = time.perf_counter()
        loss = F.cross_entropy(net(x), labels[index], label_smoothing=0.05)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    step_ms = 1e3 * statistics.median(times[_PLANNING:] or times)
    return Training(losses, step_ms, peak_mib, accuracy(net.eval(), held_out))


def table(found: dict[str, Training]) -> str:
    """The losses of some steps of all engines, then time, memory and accuracy."""
    steps = len(next(iter(found.values())).losses)
    rows = [["step", *found]]
    for step in sorted({0, *range(9, steps, max(10, steps // 100 * 10)), steps - 1}):
        rows.append([str(step + 1), *(f"{each.losses[step]:.4f}" for each in found.values())])
    rows.append(["ms a step", *(f"{each.step_ms:.1f}" for each in found.values())])
    rows.append(["peak MiB", *(f"{each.peak_mib:.0f}" for each in found.values())])
    rows.append(["held out", *(f"{each.accuracy:.1%}" for each in found.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train by each engine in a process of its own, and print what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, help="train by this one here, print JSON")
    options = parser.parse_args(arguments)
    if options.engine:
        trained = train(options.engine, options.steps, options.batch, options.threads)
        print(json.dumps(asdict(trained)))
        return 0
    numbers = [f"--{n}={getattr(options, n)}" for n in ("steps", "batch", "threads")]
    found = {}
    for engine in ENGINES:
        command = [sys.executable, __file__, *numbers, f"--engine={engine}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[engine] = Training(**json.loads(done.stdout.splitlines()[-1]))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
