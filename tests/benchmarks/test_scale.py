"""What many images cost, worked out from rates."""

from __future__ import annotations

from typing import Any

import pytest

import scale as measuring
from pages import scale

SCALE: dict[str, Any] = {
    "effort": {"threads": 2},
    "results": {
        "decoding": {
            "photo_ns": 2e6,
            "photo_bytes": 125_000,
            "slide_pixel_ns": 10.0,
            "slide_pixel_bytes": 0.5,
        },
        "disk": {"read_bytes_per_s": 1e9, "write_bytes_per_s": 5e8},
        "large_image": {"side": 4000, "pixels_per_s": 5e6, "memory_bytes": 300 << 20},
        "ray": {"start_s": 3.0, "job_s": 1.0, "batch_ns": 5e6},
    },
}


def test_a_million_photos() -> None:
    load = scale.images_load(SCALE["results"], 3.6e6)
    assert load.compute_s == pytest.approx(3600)
    assert load.decode_s == pytest.approx(2000)
    assert load.core_hours(2) == pytest.approx(2 + 2000 / 3600)
    assert load.disk_s == pytest.approx(125 + 4e9 / 5e8)
    assert load.network_s == pytest.approx(1000 + 32)  # 125 MB/s
    assert load.bound(2) == "CPU"
    assert load.machines(2) == pytest.approx(4600 / 1032)
    assert scale.images_load(SCALE["results"], 1e4).bound(1) == "CPU"  # decoding alone
    assert scale.images_load(SCALE["results"], 1e4).bound(4) == "network"


def test_slides() -> None:
    load = scale.slides_load(SCALE["results"], 1.0, 1)
    assert load.compute_s == pytest.approx(4.8e9 / 5e6)
    assert load.decode_s == pytest.approx(48)
    assert load.network_s == pytest.approx(4.8e9 * 1.5 / 1.25e8)
    assert scale.slides_load(SCALE["results"], 16.0, 1).bound(2) == "CPU"


def test_the_tables_say_so() -> None:
    times = {"mobilenetv2 batch 8": 28.8e6, "resnet50 batch 1": 36e6}
    cases = [
        {"name": name, "engines": {"leanconv": {"median_ns": time}}} for name, time in times.items()
    ]
    first, second = scale.images_table(SCALE, {"cases": cases})[2:]
    assert first.startswith(
        "| mobilenetv2 | 1.0 h | 17 min | 2.2 min | 17 min | CPU | 2.6 | 0.13 $"
    )
    assert second.startswith("| resnet50 | 10 h |")
    assert scale.slides_table(SCALE, {})[-1].startswith("| 10,000 slides; scores, 16 bytes a pixel")
    assert "| Ray: each further batch | 5.0 ms |" in scale.rates_table(SCALE, {})


def test_pictures_are_as_photographs_are() -> None:
    picture = measuring.pixels(96, 128)
    assert picture.shape == (96, 128, 3)
    bytes_a_pixel = len(measuring.jpeg(picture)) / (96 * 128)
    assert 0.4 < bytes_a_pixel < 0.8
