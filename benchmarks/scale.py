"""What a machine can do beside computing: decode, read, write, hand batches over; large images.

    python benchmarks/scale.py --record scale

From this, `networks.json` and assumptions that it names, `docs/scale.md` works out what a million
images and an archive of whole slides cost. It takes about two minutes; Ray is measured where it is
installed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import leanconv
from harness import ROOT, Document, add_record_option, effort, script
from leanconv.cli.engines import machine
from leanconv.cli.output import print_json, print_table
from leanconv.units import format_bytes, format_ns

PHOTO, SIDE, QUALITY = (500, 375), 224, 90  # as ImageNet's on average; as its networks take them
SLIDE_TILE = 512  # pixels of a side, as scanners store slides
_BLOCK = 8 * 2**20


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture with detail of all sizes, as photographs have: height x width x 3 bytes."""
    random = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    step = 1
    while step < min(height, width):
        coarse = random.standard_normal((height // step + 2, width // step + 2, 3), np.float32)
        total += step**0.15 * np.kron(coarse, np.ones((step, step, 1), np.float32))[:height, :width]
        step *= 2
    low, high = np.percentile(total, (1, 99))
    return np.asarray(np.clip((total - low) / (high - low), 0, 1) * 255, np.uint8)


def jpeg(picture: np.ndarray) -> bytes:
    """The bytes of a picture's file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def median_ns(work: Callable[[], object], rounds: int) -> int:
    """The median time of some work, after a first time that does not count."""
    work()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return int(statistics.median(times))


def decoding(rounds: int) -> Document:
    """JPEG files to arrays on one core: a photo to a network's size, a tile of a slide."""
    from PIL import Image

    photo, tile = jpeg(pixels(PHOTO[1], PHOTO[0])), jpeg(pixels(SLIDE_TILE, SLIDE_TILE, 1))

    def photo_read() -> np.ndarray:
        image = Image.open(io.BytesIO(photo)).convert("RGB").resize((SIDE, SIDE))
        found: np.ndarray = np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)
        return found

    def tile_read() -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(tile)))

    times = {"photo": median_ns(photo_read, 20 * rounds), "tile": median_ns(tile_read, 20 * rounds)}
    return {
        "photo_ns": times["photo"],
        "photo_bytes": len(photo),
        "slide_pixel_ns": times["tile"] / SLIDE_TILE**2,
        "slide_pixel_bytes": len(tile) / SLIDE_TILE**2,
    }


def disk(folder: Path, size: int) -> Document:
    """Bytes a second of a file that is written and synced, then read from the disk again."""
    path, block = folder / "disk", os.urandom(_BLOCK)
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // _BLOCK):
            file.write(block)
        os.fsync(file.fileno())
        written = size / (time.perf_counter() - begin)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin, target = time.perf_counter(), bytearray(_BLOCK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(target):
            pass
    found = size / (time.perf_counter() - begin)
    path.unlink()
    return {"read_bytes_per_s": found, "write_bytes_per_s": written}


def large_image(folder: Path, side: int, threads: int) -> Document:
    """`leanconv.tiled` from one mapped file to another: the example U-Net, four maps of float32."""
    sys.path.insert(0, str(ROOT))
    from examples.networks.tasks import segmenter

    tiled = leanconv.tiled(leanconv.load(segmenter(), threads=threads), memory_limit="700 MiB")
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (1, 3, side, side))
    for row in range(0, side, 500):
        x[0, :, row : row + 500] = np.random.default_rng(row).integers(0, 256, x[0, :, :500].shape)
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (1, 4, side, side))
    plan = tiled.bind(x.shape)
    spent = median_ns(lambda: tiled(x, out=y), 3) / 1e9
    return {"side": side, "pixels_per_s": side**2 / spent, "memory_bytes": plan.memory_bytes}


def over_ray(rounds: int) -> Document | None:
    """What Ray takes to start, and to hand a batch of 16 images to an actor that does nothing."""
    if find_spec("ray") is None:
        return None
    import ray
    import ray.data

    class Idle:
        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"n": batch["data"][:, 0, 0, 0]}

    begin = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    started = time.perf_counter() - begin
    images = ray.data.from_numpy(np.zeros((1024, 3, SIDE, SIDE), np.float32)).materialize()

    def once(batch_size: int) -> float:
        begin = time.perf_counter()
        pool = ray.data.ActorPoolStrategy(size=1)
        mapped = images.map_batches(
            Idle, batch_size=batch_size, batch_format="numpy", compute=pool, num_cpus=1
        )
        mapped.materialize()
        return time.perf_counter() - begin

    once(256)
    few = statistics.median(once(256) for _ in range(rounds))
    many = statistics.median(once(4) for _ in range(rounds))
    ray.shutdown()
    return {
        "start_s": started,
        "job_s": few,
        "batch_ns": max(0.0, many - few) / (1024 / 4 - 1024 / 256) * 1e9,
    }


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=4000, help="pixels of the large image's side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there")
    parser.add_argument("--megabytes", type=int, default=1024, help="of the file for the disk")
    parser.add_argument("--threads", type=int, default=2, help="of the network")
    parser.add_argument("--rounds", type=int, default=5, help="whose median counts")
    parser.add_argument("--wait", type=float, default=60, metavar="S", help="for a quiet machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_record_option(parser)
    options = parser.parse_args()
    busy = machine.wait_until_quiet(patience_s=options.wait)
    with tempfile.TemporaryDirectory(prefix="leanconv-scale-") as name:
        folder = Path(name)
        results: dict[str, Any] = {
            "decoding": decoding(options.rounds),
            "disk": disk(folder, options.megabytes << 20),
            "large_image": large_image(folder, options.side, options.threads),
            "ray": over_ray(options.rounds),
        }
    document = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "effort": effort(options, "threads", "rounds"),
        "results": results,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    else:
        flat = [(f"{of} {k}", v) for of, each in results.items() for k, v in (each or {}).items()]
        print_table(["what", "measured"], [[what, _shown(what, v)] for what, v in flat])
    return 0


def _shown(what: str, value: float) -> str:
    if what.endswith("_ns"):
        return format_ns(value)
    if what.endswith(("_bytes", "bytes_per_s")) and value >= 1000:
        return format_bytes(int(value))
    return f"{value:.6g}"


if __name__ == "__main__":
    script(main)
