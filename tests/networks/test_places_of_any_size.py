"""Elements found by index or place, in networks of open sizes, beside convolutions."""

from __future__ import annotations

import numpy as np
from onnx import helper

import leanconv as lc
from support.import_cases import Numbers
from support.onnx_models import model, reference

N = Numbers(13)
SHAPES = ((1, 8, 9), (2, 12, 7), (1, 5, 17))


def test_all_in_one_network() -> None:
    """A convolution before and behind each, so that its map is in blocks."""
    node, held = helper.make_node, {
        "w": N.normal(16, 3, 3, 3),
        "v": N.normal(16, 16, 3, 3) / 12,
        "u": N.normal(8, 16, 1, 1) / 4,
        "scales": np.array([1, 1, 1.5, 2], np.float32),
        "regions": np.array([[0, 0, 5, 4], [1, 2, 6, 9], [-2, 3, 2, 4]], np.float32),
        "images": np.array([0, 0, 0]),
        "at": np.array([3, -1, 5, 0, 9, 2, 7, 7, 1, 12, 14, 4, 6, 8, 10, 11, 13, 2, 5]),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Resize", ["a", "", "scales"], ["b"], mode="cubic"),
        node("Resize", ["a", "", "scales"], ["c"], mode="linear", antialias=1),
        node("Add", ["b", "c"], ["d"]),
        node("Conv", ["d", "u"], ["y0"]),
        node("GridSample", ["a", "grid"], ["e"], padding_mode="border"),
        node("Conv", ["e", "u"], ["y1"]),
        node("RoiAlign", ["a", "regions", "images"], ["f"], output_height=2, output_width=3),
        node("Conv", ["f", "u"], ["y2"]),
        node("DeformConv", ["a", "v", "offset"], ["g"], pads=[1] * 4),
        node("Conv", ["g", "u"], ["y3"]),
        node("Gather", ["a", "at"], ["y4"], axis=1),
        node("Gather", ["a", "rows"], ["y5"], axis=2),
        node("ScatterElements", ["a", "places", "g"], ["y6"], axis=3, reduction="max"),
        node("GatherElements", ["a", "places"], ["y7"], axis=3),
    ]
    sizes = {
        "x": ("N", 3, "H", "W"),
        "grid": ("N", "P", "Q", 2),
        "offset": ("N", 18, "H", "W"),
        "rows": ("R",),
        "places": ("N", 16, "H", "W"),
    }
    proto = model(nodes, sizes, [f"y{number}" for number in range(8)], held, 20)
    for value in proto.graph.input:
        if value.name in ("rows", "places"):
            value.type.tensor_type.elem_type = 7
    net, random = lc.load(proto, threads=2), np.random.default_rng(1)
    for images, height, width in SHAPES:
        given = {
            "x": N.normal(images, 3, height, width),
            "grid": random.uniform(-1.2, 1.2, (images, height + 2, 5, 2)).astype("f4"),
            "offset": random.uniform(-1, 1, (images, 18, height, width)).astype("f4"),
            "rows": random.integers(-height, height, width),
            "places": random.integers(-width, width, (images, 16, height, width)),
        }
        found = net.run(given)
        for name, wanted in reference(proto, given).items():
            error = np.abs(found[name] - wanted).max() / np.abs(wanted).max()
            assert error < 2e-5, (name, images, height, width)
