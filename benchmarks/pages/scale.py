"""The tables of docs/scale.md: what many images cost, from what one machine was measured to do.

Nothing here is measured: rates come from `scale.json`, times of networks from `networks.json`, and
what is assumed is said in the tables. Costs are in hours of cores that work all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leanconv.units import format_bytes
from pages.tables import table

Document = Mapping[str, Any]
IMAGES = 1_000_000
SLIDES, SLIDE = 10_000, (80_000, 60_000)  # of an archive; pixels of a slide at full resolution
NETWORK_BYTES_PER_S = 10**9 / 8  # one Gbit/s, as a shared file system may give a machine
CORE_HOUR = 0.05  # dollars: about what clouds ask for a virtual core
SCORES = 1000  # classes of the networks that are compared
CASES = ("mobilenetv2 batch 8", "resnet50 batch 1")


@dataclass(frozen=True)
class Load:
    """What some work takes of one machine, in seconds of each of its parts alone.

    Attributes:
        compute_s: of all cores together.
        decode_s: of one core.
        disk_s, network_s: to read; to write beside it counts, too.
    """

    compute_s: float
    decode_s: float
    disk_s: float
    network_s: float

    def cpu_s(self, cores: int) -> float:
        """Computing and decoding share the cores."""
        return self.compute_s + self.decode_s / cores

    def core_hours(self, cores: int) -> float:
        """Of cores that are never idle."""
        return self.cpu_s(cores) * cores / 3600

    def bound(self, cores: int) -> str:
        """What takes longest, where files are in a network's store."""
        parts = {"CPU": self.cpu_s(cores), "network": self.network_s}
        return max(parts, key=lambda name: parts[name])

    def machines(self, cores: int) -> float:
        """Machines whose cores keep a store behind one Gbit/s busy."""
        return self.cpu_s(cores) / self.network_s


def _moving(read: float, written: float, disk: Document) -> tuple[float, float]:
    """Seconds of a disk, and of a network, for bytes."""
    at_disk = read / disk["read_bytes_per_s"] + written / disk["write_bytes_per_s"]
    return at_disk, (read + written) / NETWORK_BYTES_PER_S


def images_load(results: Document, image_ns: float, count: int = IMAGES) -> Load:
    """A network over photos in files, whose scores are kept."""
    decoding = results["decoding"]
    moved = _moving(count * decoding["photo_bytes"], 4.0 * SCORES * count, results["disk"])
    return Load(count * image_ns / 1e9, count * decoding["photo_ns"] / 1e9, *moved)


def slides_load(results: Document, pixel_bytes: float, count: int = SLIDES) -> Load:
    """The example U-Net over slides of JPEG tiles, of whose result some bytes a pixel are kept."""
    decoding, number = results["decoding"], float(count * SLIDE[0] * SLIDE[1])
    moved = _moving(number * decoding["slide_pixel_bytes"], number * pixel_bytes, results["disk"])
    computed = number / results["large_image"]["pixels_per_s"]
    return Load(computed, number * decoding["slide_pixel_ns"] / 1e9, *moved)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return (
        f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h" if hours >= 1 else _minutes(seconds)
    )


def _minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


def _row(name: str, load: Load, cores: int) -> list[str]:
    spent = load.core_hours(cores)
    return [
        name,
        _hours(load.compute_s),
        _hours(load.decode_s / cores),
        _hours(load.disk_s),
        _hours(load.network_s),
        load.bound(cores),
        f"{spent:,.1f}" if spent < 10 else f"{spent:,.0f}",
        f"{spent * CORE_HOUR:,.2f} $" if spent < 100 else f"{spent * CORE_HOUR:,.0f} $",
        f"{load.machines(cores):.1f}",
    ]


def _heads(cores: int) -> list[str]:
    return [
        "",
        f"computing, {cores} cores",
        "decoding",
        "local disk",
        "1 Gbit/s",
        "bound by",
        "core-hours",
        f"at {CORE_HOUR} $",
        f"machines of {cores} cores for 1 Gbit/s",
    ]


def images_table(scale: Document, networks: Document) -> list[str]:
    """A million photos: a row for each network."""
    results, cores = scale["results"], scale["effort"]["threads"]
    rows = []
    for name in CASES:
        case = next(each for each in networks["cases"] if each["name"] == name)
        batch = int(name.rpartition(" ")[2])
        image_ns = case["engines"]["leanconv"]["median_ns"] / batch
        rows.append(_row(name.partition(" ")[0], images_load(results, image_ns), cores))
    return table(_heads(cores), rows)


def slides_table(scale: Document, _networks: Document) -> list[str]:
    """One slide and an archive of them, with what is kept of the result."""
    results, cores = scale["results"], scale["effort"]["threads"]
    rows = []
    for count, what in ((1, "one slide"), (SLIDES, f"{SLIDES:,} slides")):
        for kept, size in (("classes, 1 byte", 1.0), ("scores, 16 bytes", 16.0)):
            rows.append(_row(f"{what}; {kept} a pixel", slides_load(results, size, count), cores))
    return table(_heads(cores), rows)


def rates_table(scale: Document, _networks: Document) -> list[str]:
    """What was measured on the machine."""
    results = scale["results"]
    decoding, disk, image = results["decoding"], results["disk"], results["large_image"]
    photo_ms, bytes_a_photo = decoding["photo_ns"] / 1e6, decoding["photo_bytes"]
    rows = [
        ["a photo of 500 x 375: JPEG to 3 x 224 x 224", f"{photo_ms:.2f} ms of a core"],
        ["its file", format_bytes(bytes_a_photo)],
        ["a slide's JPEG tiles", f"{1e3 / decoding['slide_pixel_ns']:.0f} Mpixel/s a core"],
        ["their bytes", f"{decoding['slide_pixel_bytes']:.2f} a pixel"],
        ["local disk, read and written", _rates(disk)],
        [
            f"U-Net of `examples/` by `leanconv.tiled`, {image['side']:,}² pixels",
            f"{image['pixels_per_s'] / 1e6:.2f} Mpixel/s, {format_bytes(image['memory_bytes'])}",
        ],
    ]
    if results.get("ray"):
        ray = results["ray"]
        rows += [
            ["Ray: start on this machine", f"{ray['start_s']:.1f} s"],
            ["Ray: a job of 4 batches that compute nothing", f"{ray['job_s']:.1f} s"],
            ["Ray: each further batch", f"{ray['batch_ns'] / 1e6:.1f} ms"],
        ]
    return table(["", "measured"], rows)


def _rates(disk: Document) -> str:
    read, written = disk["read_bytes_per_s"] / 1e6, disk["write_bytes_per_s"] / 1e6
    return f"{read:,.0f} and {written:,.0f} MB/s"


TABLES = {"scale_rates": rates_table, "scale_images": images_table, "scale_slides": slides_table}
