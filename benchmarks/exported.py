"""Networks as torch's two exporters write them: which leanconv answers as onnxruntime does.

    python benchmarks/exported.py                            all architectures, exporters, opsets
    python benchmarks/exported.py --only 'resnet|lstm' --opsets 17,22

Needs torch, torchvision and onnxscript beside onnxruntime, and no network: weights are random. Each
architecture is exported by TorchScript's and by dynamo's exporter, with fixed shapes and with open
ones, which are run at two sizes. Each has a process of its own. A table of right, refused, wrong
and not exported follows; the exit code is 1 if one is wrong, or fails with anything but a refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

RIGHT, REFUSED, WRONG, FAILED, UNEXPORTED = "right", "refused", "wrong", "failed", "not exported"
OUTCOMES = (RIGHT, REFUSED, WRONG, FAILED, UNEXPORTED)
EXPORTERS = ("torchscript", "dynamo")
OPSETS = tuple(range(17, 23))
_TORCHSCRIPT_OPSETS = 20  # the last that it writes
_CASE = "case: "  # begins a line about one; exporters print others
_CLOSE = 1e-4  # of the largest output
_LIMIT_S = 1800  # of one architecture


@dataclass(frozen=True)
class Architecture:
    """A network to export.

    Attributes:
        make: makes it; random weights.
        size: height and width of its input, or frames and features of a sequence.
        channels: of its input; 0 for a sequence (N, frames, features).
        open_size: whether height and width may be open, not the batch alone.
    """

    make: Callable[[], Any]
    size: tuple[int, int] = (64, 64)
    channels: int = 3
    open_size: bool = True

    def shape(self, batch: int = 1, more: int = 0) -> tuple[int, ...]:
        """Of an input, `more` larger along each open axis."""
        height, width = self.size
        more = more if self.open_size else 0
        if not self.channels:
            return (batch, height + more, width)
        return (batch, self.channels, height + more, width + more)


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        from torchvision import models

        found: Any = models
        for part in name.split("."):
            found = getattr(found, part)
        return found(weights=None, **options)

    return make


def _segmentation(name: str) -> Callable[[], Any]:
    return _vision(f"segmentation.{name}", weights_backbone=None, num_classes=5)


def _transformer() -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 3, 48, 96, num_classes=10)


def _maxvit() -> Any:
    from torchvision.models import MaxVit

    return MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.0, num_classes=10)


def _recogniser() -> Any:
    """A CRNN: convolutions, then two LSTMs along the line."""
    from torch import nn

    class Recogniser(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, 2)
            )
            self.steps = nn.LSTM(24, 32, num_layers=2, bidirectional=True, batch_first=True)
            self.letters = nn.Linear(64, 20)

        def forward(self, x: Any) -> Any:
            columns = self.maps(x).mean(2).permute(0, 2, 1)
            return self.letters(self.steps(columns)[0]).softmax(-1)

    return Recogniser()


def _recurrent() -> Any:
    """A GRU over frames of sound, behind one convolution."""
    from torch import nn

    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Conv1d(16, 24, 5, padding=2)
            self.steps = nn.GRU(24, 20, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.steps(self.filter(x.transpose(1, 2)).relu().transpose(1, 2))[0]

    return Recurrent()


def _unet() -> Any:
    """Down twice, up twice, with what was before beside it."""
    import torch
    from torch import nn

    def block(before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU(0.1)
        )

    class Unet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = block(3, 8), block(8, 16), block(16, 32)
            self.up = nn.ConvTranspose2d(32, 16, 2, 2)
            self.merged, self.last = block(32, 8), nn.Conv2d(16, 4, 1)

        def forward(self, x: Any) -> Any:
            a = self.first(x)
            b = self.second(nn.functional.max_pool2d(a, 2))
            c = self.merged(torch.cat([b, self.up(self.third(nn.functional.avg_pool2d(b, 2)))], 1))
            wide = nn.functional.interpolate(c, size=a.shape[2:], mode="bilinear")
            return self.last(torch.cat([a, wide], 1))

    return Unet()


ARCHITECTURES: dict[str, Architecture] = {
    # Their adaptive pooling is exported for maps of 6x6 and 7x7 alone.
    "alexnet": Architecture(_vision("alexnet", num_classes=10), (224, 224), open_size=False),
    "vgg11_bn": Architecture(_vision("vgg11_bn", num_classes=10), (224, 224), open_size=False),
    "resnet18": Architecture(_vision("resnet18")),
    "resnext50": Architecture(_vision("resnext50_32x4d")),
    "densenet121": Architecture(_vision("densenet121")),
    "googlenet": Architecture(_vision("googlenet", aux_logits=False, init_weights=False)),
    "inception_v3": Architecture(
        _vision("inception_v3", aux_logits=False, init_weights=False), (96, 96)
    ),
    "squeezenet1_1": Architecture(_vision("squeezenet1_1")),
    "shufflenet_v2": Architecture(_vision("shufflenet_v2_x0_5")),
    "mobilenet_v2": Architecture(_vision("mobilenet_v2")),
    "mobilenet_v3": Architecture(_vision("mobilenet_v3_small")),
    "mnasnet": Architecture(_vision("mnasnet0_5")),
    "efficientnet_b0": Architecture(_vision("efficientnet_b0")),
    "regnet_y": Architecture(_vision("regnet_y_400mf")),
    "convnext_tiny": Architecture(_vision("convnext_tiny")),
    "swin_t": Architecture(_vision("swin_t"), open_size=False),
    "vit": Architecture(_transformer, open_size=False),
    "maxvit": Architecture(_maxvit, open_size=False),
    "deeplabv3": Architecture(_segmentation("deeplabv3_mobilenet_v3_large")),
    "lraspp": Architecture(_segmentation("lraspp_mobilenet_v3_large")),
    "unet": Architecture(_unet),
    "crnn_lstm": Architecture(_recogniser, (32, 96), open_size=False),
    "gru": Architecture(_recurrent, (20, 16), 0),
}


def cases(opsets: list[int]) -> Iterator[tuple[str, int, bool]]:
    """Exporter, opset, whether shapes are open."""
    for exporter in EXPORTERS:
        for opset in opsets:
            if exporter == "dynamo" or opset <= _TORCHSCRIPT_OPSETS:
                yield exporter, opset, False
                yield exporter, opset, True


def exported(each: Architecture, network: Any, exporter: str, opset: int, is_open: bool) -> bytes:
    """The file that an exporter writes."""
    import torch

    x = torch.from_numpy(_input(each.shape(2 if is_open else 1)))
    open_axes = (0, *((2, 3) if each.channels else (1,))) if each.open_size else (0,)
    options: dict[str, Any] = {"opset_version": opset, "input_names": ["x"]}
    if exporter == "torchscript":
        if is_open:
            options["dynamic_axes"] = {"x": {axis: f"axis{axis}" for axis in open_axes}}
        file = io.BytesIO()
        torch.onnx.export(network, (x,), file, dynamo=False, **options)
        return file.getvalue()
    if is_open:
        options["dynamic_shapes"] = (dict.fromkeys(open_axes, torch.export.Dim.DYNAMIC),)
    program = torch.onnx.export(network, (x,), dynamo=True, verbose=False, **options)
    return bytes(program.model_proto.SerializeToString())


def _input(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def compared(each: Architecture, data: bytes, is_open: bool) -> tuple[str, str]:
    """What becomes of a file, and what there is to say of it."""
    import onnxruntime

    import leanconv

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    judge = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (name,) = (given.name for given in judge.get_inputs())
    shapes = [each.shape(2), each.shape(3, 32)] if is_open else [each.shape()]
    try:
        network = leanconv.load(data, threads=1)
        for shape in shapes:
            x = _input(shape)
            ours = network.run(None, {name: x})
            for mine, theirs in zip(ours, judge.run(None, {name: x}), strict=True):
                if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                    return WRONG, f"{mine.dtype}{mine.shape}, not {theirs.dtype}{theirs.shape}"
                off = float(abs(mine - theirs).max(initial=0)) / max(abs(theirs).max(), 1e-30)
                if not off <= _CLOSE:
                    return WRONG, f"at {shape}: {off:.1e} of the largest output"
    except leanconv.LeanConvError as error:
        return REFUSED, str(error)
    except Exception as error:  # whatever it is, it is told
        return FAILED, f"{type(error).__name__}: {error}"
    return RIGHT, ""


def run_one(name: str, opsets: list[int]) -> None:
    """Export and run one architecture; a line of JSON for each case."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    each = ARCHITECTURES[name]
    network = each.make().eval()
    for exporter, opset, is_open in cases(opsets):
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data = exported(each, network, exporter, opset, is_open)
        except Exception as error:  # torch's
            found = UNEXPORTED, f"{type(error).__name__}: {error}"
        else:
            found = compared(each, data, is_open)
        print(_CASE + json.dumps([exporter, opset, is_open, *found]), flush=True)


def rows(name: str, opsets: list[int]) -> Iterator[tuple[str, int, bool, str, str]]:
    """What a process of its own says of an architecture."""
    command = [sys.executable, __file__, "--one", name, "--opsets", ",".join(map(str, opsets))]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=False
    )
    for line in ended.stdout.splitlines():
        if not line.startswith(_CASE):
            continue
        exporter, opset, is_open, what, text = json.loads(line[len(_CASE) :])
        yield exporter, opset, is_open, what, text
    if ended.returncode:
        yield "all", 0, False, FAILED, f"exit code {ended.returncode}"


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counts[each]) for each in OUTCOMES) + " |"


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="architectures that match it")
    parser.add_argument("--opsets", default=",".join(map(str, OPSETS)), help="such as 17,22")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    opsets = [int(each) for each in given.opsets.split(",")]
    if given.one:
        logging.disable(logging.WARNING)
        run_one(given.one, opsets)
        return 0
    total: Counter[str] = Counter()
    print("| architecture | " + " | ".join(OUTCOMES) + " |\n" + "|---" * (len(OUTCOMES) + 1) + "|")
    said = []
    for name in ARCHITECTURES:
        if not re.search(given.only, name):
            continue
        counts: Counter[str] = Counter()
        for exporter, opset, is_open, what, text in rows(name, opsets):
            counts[what] += 1
            if what != RIGHT:
                shapes = "open" if is_open else "fixed"
                said.append(f"{name}, {exporter}, opset {opset}, {shapes}: {what}: {text[:300]}")
        print(
            f"| {name} | " + " | ".join(str(counts[each]) for each in OUTCOMES) + " |", flush=True
        )
        total += counts
    print("| all | " + " | ".join(str(total[each]) for each in OUTCOMES) + " |")
    print("\n".join(said))
    return 1 if total[WRONG] or total[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
