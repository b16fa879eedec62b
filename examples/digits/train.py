"""Train the digit reader and write `digits.onnx`, `held_out.npz` and the pictures in `images/`.

    python examples/digits/train.py

needs torch, scikit-learn, onnx and Pillow (`pip install torch scikit-learn onnx pillow`);
everything written here is already in the repository. One thread, fixed seeds and deterministic
kernels: the same versions on the same kind of machine give the same file. It takes about two
minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import ImageOps
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own habit)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.digits.data import Digits, load_split, raw_picture  # noqa: E402
from examples.digits.net import HEAD, STAGES, STEM, DigitNet  # noqa: E402
from examples.networks.mobilenet import mobilenet_v2  # noqa: E402

MEAN, STD = 0.5, 0.5  # of pixels already scaled to 0..1


def scaled(images: np.ndarray) -> Tensor:
    """Scale uint8 pixels as the metadata of the model says: `(pixel / 255 - mean) / std`."""
    return torch.from_numpy((images.astype(np.float32) / 255.0 - MEAN) / STD)


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, shear, scale, shift and recolour a batch a little; half of it becomes dark on light."""
    count = x.shape[0]

    def uniform(reach: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * reach

    angle, shear = uniform(0.2), uniform(0.15)
    zoom_x, zoom_y = 1 + uniform(0.12), 1 + uniform(0.12)
    theta = torch.stack(
        [
            torch.stack([angle.cos() * zoom_x, -angle.sin() + shear, uniform(0.12)], 1),
            torch.stack([angle.sin(), angle.cos() * zoom_y, uniform(0.12)], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    y = F.grid_sample(x + 1, grid, align_corners=False) - 1  # what comes in from outside is dark
    y = y * (1 + uniform(0.15))[:, None, None, None] + uniform(0.1)[:, None, None, None]
    y = y + 0.05 * torch.randn(y.shape, generator=generator)
    sign = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    return y.clamp(-1, 1) * sign[:, None, None, None]


def train(data: Digits, epochs: int, seed: int) -> DigitNet:
    """Train with AdamW and a one-cycle rate; return the network in evaluation mode."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = DigitNet()
    images, labels = scaled(data.images), torch.from_numpy(data.labels)
    batch = 64
    steps = len(labels) // batch
    optimiser = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, epochs * steps)
    begun = time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        total = 0.0
        for step in range(steps):
            index = order[step * batch : (step + 1) * batch]
            logits = net(augmented(images[index], generator))
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        if epoch % 5 == 4 or epoch == epochs - 1:
            seconds = time.monotonic() - begun
            print(
                f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}, {seconds:.0f} s", flush=True
            )
    net.eval()
    return net


def accuracy(net: DigitNet, data: Digits, sign: float = 1.0) -> float:
    """Return the share of images read correctly; `sign` -1 inverts them."""
    with torch.no_grad():
        answers = net(sign * scaled(data.images)).argmax(1).numpy()
    return float((answers == data.labels).mean())


def write_model(net: DigitNet, path: Path) -> int:
    """Write the network as ONNX, batch norm unfolded, batch symbolic; return the bytes."""
    params = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    metadata = {
        "labels": json.dumps([str(digit) for digit in range(10)]),
        "input_layout": "NCHW",
        "input_scale": repr(1.0 / 255.0),
        "input_mean": json.dumps([MEAN]),
        "input_std": json.dumps([STD]),
    }
    model = mobilenet_v2(
        image=32,
        classes=10,
        channels=1,
        stem=STEM,
        stages=STAGES,
        head=HEAD,
        params=params,
        metadata=metadata,
    )
    model.graph.name = "digits"
    data = model.SerializeToString()
    path.write_bytes(data)
    return len(data)


def write_images(held_out: Digits, folder: Path) -> None:
    """Write two held-out pictures of every digit: `digit_7_a.png` and, dark on light, `_b`."""
    folder.mkdir(exist_ok=True)
    for digit in range(10):
        first, second = (int(source) for source in held_out.sources[held_out.labels == digit][:2])
        raw_picture(first).save(folder / f"digit_{digit}_a.png", optimize=True)
        ImageOps.invert(raw_picture(second)).save(folder / f"digit_{digit}_b.png", optimize=True)


def main() -> int:
    """Train, write, report; return 0 if the held-out accuracy reaches 98 %."""
    parser = argparse.ArgumentParser(description="Train the digit reader.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, held_out = load_split()
    net = train(training, options.epochs, options.seed)
    score = accuracy(net, held_out)
    inverted = accuracy(net, held_out, -1.0)
    print(f"held out: {score:.2%} of {len(held_out.labels)}; inverted: {inverted:.2%}")
    options.out.mkdir(parents=True, exist_ok=True)
    size_bytes = write_model(net, options.out / "digits.onnx")
    print(f"digits.onnx: {size_bytes / 1000:.0f} kB")
    np.savez_compressed(
        options.out / "held_out.npz", images=held_out.images, labels=held_out.labels
    )
    write_images(held_out, options.out / "images")
    return 0 if score >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
