"""A MobileNetV2 trained here on photographs that scikit-image carries, before and after quantising.

    python benchmarks/trained_mobilenet.py --out FOLDER [--steps 250] [--drop 1.0]

Each class is a picture of scikit-image's package: which of them is a patch of 64 x 64 pixels of?
The network sees patches of the left three fifths of every picture; it is judged on the right two
fifths, which it has never seen: half of these to calibrate and verify on, half at the end. Its file
goes through `leanconv.quantize`, all layers and within a drop of accuracy. Prints accuracy and time
of float32 and of both. The folder keeps the network: a second run does not train again.

Needs torch, Pillow and scikit-image. Pictures are read from that package, none is written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import leanconv as lc

_PICTURES = (
    *("astronaut", "brick", "camera", "cell", "color", "chelsea", "coffee", "coins"),
    *("grass", "gravel", "horse", "hubble_deep_field", "ihc", "moon"),
    *("motorcycle_left", "page", "retina", "rocket", "text"),
)
_SIDE = 64
_SEEN = 0.6  # of a picture's width, from the left
_BATCH = 48
_TEST = 40  # patches of each picture
_RATE = 0.003  # of learning, at first
_RUNS = 200
# expansion, channels, blocks, stride
_BLOCKS = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def pictures() -> list[np.ndarray]:
    """The pictures, (h, w, 3) float32 from -1 to 1."""
    from PIL import Image

    package = importlib.util.find_spec("skimage")
    assert package, "scikit-image is not installed"
    assert package.origin, "scikit-image is a package"
    folder = Path(package.origin).parent / "data"
    found = []
    for name in _PICTURES:
        (file,) = folder.glob(f"{name}.*")
        picture = np.asarray(Image.open(file).convert("RGB"), np.float32)
        found.append(picture * np.float32(2.0 / 255.0) - np.float32(1.0))
    return found


def patches(held: list[np.ndarray], counts: int, rng: np.random.Generator, seen: bool) -> Any:
    """`counts` patches (n, 3, 64, 64) of each picture, from its seen or its unseen part; labels."""
    images, labels = [], []
    for label, picture in enumerate(held):
        height, width = picture.shape[:2]
        cut = int(width * _SEEN)
        low, high = (0, cut - _SIDE) if seen else (cut, width - _SIDE)
        for _ in range(counts):
            y, x = rng.integers(0, height - _SIDE + 1), rng.integers(low, high + 1)
            patch = picture[y : y + _SIDE, x : x + _SIDE]
            images.append(patch[:, :: rng.choice([1, -1])].transpose(2, 0, 1))
            labels.append(label)
    order = rng.permutation(len(labels))
    return np.stack(images)[order].astype(np.float32), np.array(labels)[order]


def mobilenet_v2(classes: int) -> Any:
    """The network of the paper (Sandler et al., 2018, table 2), width 1, not trained."""
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int, stride: int, group: int, act: bool) -> Any:
        pad = kernel // 2
        layers = [nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=group, bias=False)]
        layers.append(nn.BatchNorm2d(outputs))
        return nn.Sequential(*layers, *([nn.ReLU6()] if act else []))

    class Block(nn.Module):  # type: ignore[misc]  # torch is not there for the checker
        def __init__(self, inputs: int, outputs: int, stride: int, times: int) -> None:
            super().__init__()
            inner = inputs * times
            layers = [conv(inputs, inner, 1, 1, 1, True)] if times > 1 else []
            layers.append(conv(inner, inner, 3, stride, inner, True))
            self.layers = nn.Sequential(*layers, conv(inner, outputs, 1, 1, 1, False))
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.adds else self.layers(x)

    layers, channels = [conv(3, 32, 3, 2, 1, True)], 32
    for times, outputs, count, stride in _BLOCKS:
        for number in range(count):
            layers.append(Block(channels, outputs, stride if not number else 1, times))
            channels = outputs
    layers += [conv(channels, 1280, 1, 1, 1, True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, classes))


def train(steps: int, file: Path) -> None:
    """Train, and write the network as ONNX."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    held, rng = pictures(), np.random.default_rng(0)
    net = mobilenet_v2(len(held))
    best = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(best, _RATE, total_steps=steps)
    for step in range(steps):
        x, labels = patches(held, -(-_BATCH // len(held)), rng, seen=True)
        x = x * rng.uniform(0.7, 1.3) + rng.uniform(-0.2, 0.2)  # light and contrast
        loss = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(x.astype(np.float32))), torch.from_numpy(labels)
        )
        best.zero_grad()
        loss.backward()
        best.step()
        rate.step()
        if step % 25 == 0:
            print(f"step {step} of {steps}: loss {float(loss.detach()):.3f}", flush=True)
    net.eval()
    x = torch.zeros(1, 3, _SIDE, _SIDE)
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}}}
    torch.onnx.export(net, (x,), file, dynamo=False, opset_version=17, **names)


def measured(data: Path | bytes, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy here and in onnxruntime, and the least time of one patch, milliseconds."""
    net = lc.load(data, threads=1)
    own = np.concatenate([net(images[i : i + 8]) for i in range(0, len(images), 8)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    given = data if isinstance(data, bytes) else str(data)
    session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    (other,) = session.run(None, {"x": images})
    times: dict[str, Callable[[np.ndarray], Any]] = {
        "leanconv_ms": net,
        "onnxruntime_ms": lambda x: session.run(None, {"x": x}),
    }
    found = {
        "accuracy": float(np.mean(own.argmax(1) == labels)),
        "onnxruntime_accuracy": float(np.mean(other.argmax(1) == labels)),
    }
    for name, run in times.items():
        each = []
        for _ in range(_RUNS):
            begin = time.perf_counter_ns()
            run(images[:1])
            each.append(time.perf_counter_ns() - begin)
        found[name] = min(each[_RUNS // 10 :]) / 1e6
    return found


def main() -> None:
    """Train, quantise, measure, print."""
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--drop", type=float, default=1.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "mobilenetv2_patches.onnx"
    if not file.exists():
        train(options.steps, file)
    images, labels = patches(pictures(), _TEST, np.random.default_rng(1), seen=False)
    half = len(labels) // 2
    rows = {"float32": measured(file, images[half:], labels[half:])}
    given = {"labels": labels[:half], "threads": 1}
    for name, drop in (("int8", None), (f"int8 within {options.drop} %", options.drop)):
        made = lc.quantize(file, images[:half], max_accuracy_drop=drop, **given)
        kept = sum(layer.precision == "float32" for layer in made.layers)
        rows[name] = measured(made.data, images[half:], labels[half:])
        rows[name] |= {"layers in float32": kept, "bytes": len(made.data)}
    print(json.dumps({"classes": len(_PICTURES), "unseen patches": half, **rows}, indent=1))


if __name__ == "__main__":
    main()
