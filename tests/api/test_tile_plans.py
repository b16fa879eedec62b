"""Plans of images in tiles: windows that fit, whatever is small or large; fused blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import leanconv as lc
from examples.networks.tasks import segmenter
from leanconv.errors import InputError, UnsupportedError
from leanconv.planner.image_tiles.windows import fewest_read_twice
from support.local_networks import local_network
from support.onnx_models import model

_FLOAT = np.float32


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(_FLOAT)


def mobile_network() -> onnx.ModelProto:
    """A stem and three inverted residuals, the second of stride 2."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def conv(x: str, y: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        groups = channels[0] if y.startswith("deep") else 1
        weights[f"w.{y}"] = image(channels[1], channels[0] // groups, kernel, kernel) / kernel
        weights[f"b.{y}"] = image(channels[1])
        options: dict[str, Any] = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
        inputs = [x, f"w.{y}", f"b.{y}"]
        nodes.append(helper.make_node("Conv", inputs, [y], name=y, group=groups, **options))
        if y.startswith("out"):
            return y
        nodes.append(helper.make_node("Relu", [y], [f"{y}.r"]))
        return f"{y}.r"

    x = conv(conv(conv("x", "stem", (3, 32), 3, 2), "deep", (32, 32), 3), "out", (32, 16), 1)
    for block in range(3):
        y = conv(x, f"wide{block}", (16, 96), 1)
        y = conv(y, f"deep{block}", (96, 96), 3, 2 if block == 1 else 1)
        y = conv(y, f"out{block}", (96, 16), 1)
        if block != 1:
            nodes.append(helper.make_node("Add", [x, y], [f"sum{block}"]))
            y = f"sum{block}"
        x = y
    return model(nodes, {"x": ["N", 3, "H", "W"]}, [x], weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_mobile_networks_are_fused(threads: int) -> None:
    net, x = lc.load(mobile_network(), threads=threads), image(2, 3, 100, 132)
    for tile in (40, (56, 60)):
        tiled = lc.tiled(net, tile=tile)
        np.testing.assert_array_equal(tiled(x), tiled.whole(x))
        assert tiled.plan.tiles > 4
        chains = [n for n in tiled.plan.windows.window.nodes if n.op == "ConvChain"]
        assert len(chains) == 4
    np.testing.assert_allclose(tiled(x), net(x), rtol=1e-4, atol=1e-4)


def test_layers_that_are_chosen_by_name_are_not_fused() -> None:
    net = lc.load(mobile_network(), threads=1, algorithms={"wide0": "direct"})
    tiled = lc.tiled(net, tile=40)
    x = image(1, 3, 64, 64)
    np.testing.assert_array_equal(tiled(x), tiled.whole(x))
    assert all(node.op != "ConvChain" for node in tiled.plan.windows.window.nodes)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 6000), st.integers(1, 64), st.integers(0, 200))
def test_windows_divide_an_axis(extent: int, wanted: int, step: int, margin: int) -> None:
    part, count = fewest_read_twice(extent, wanted, step, margin)
    assert 0 < part <= extent
    assert (extent - part) % step == 0
    if count == 1:
        assert part == extent
    else:
        assert (count - 1) * ((part - margin) // step * step) >= extent - part


def test_the_last_windows_are_not_read_twice() -> None:
    """Where windows of the extent that was tried first would cover a fifth more."""
    tiled = lc.tiled(lc.load(segmenter(), threads=1), memory_limit="100 MiB")
    plan = tiled.bind((1, 3, 3000, 3000))
    assert plan.windows.overlap < 1.5
    assert plan.memory_bytes <= 100 << 20


def test_whole_slides_are_planned() -> None:
    """Whose values would take more than any tensor may."""
    plan = lc.tiled(lc.load(segmenter(), threads=1), tile=2000).bind((1, 3, 10**5, 10**5))
    assert plan.tiles > 1000
    assert plan.windows.whole.types["output"].bytes > 1 << 37
    with pytest.raises(lc.LeanConvError, match="bytes"):
        lc.load(segmenter(), threads=1).bind((1, 3, 10**5, 10**5))


def test_images_that_are_smaller_than_what_a_pixel_reads() -> None:
    """A kernel that covers an image reads all of it; the network is local all the same."""
    nets = [lc.load(local_network(seed), threads=1) for seed in (0, 2, 4)]
    ran = 0
    for net in nets:
        tiled = lc.tiled(net)
        for side in (1, 2, 5, 9):
            x = image(1, 3, side, side)
            try:
                expected = net(x)
            except lc.LeanConvError:  # an output would be empty
                with pytest.raises(lc.LeanConvError, match="larger|expected"):
                    tiled(x)
                continue
            found = tiled(x)
            np.testing.assert_array_equal(found, tiled.whole(x))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
            ran += 1
    assert ran > 4


def test_inputs_of_a_whole_image_by_place_and_name() -> None:
    nodes = [
        helper.make_node("Conv", ["a", "w"], ["h"], pads=[1] * 4),
        helper.make_node("Add", ["h", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    inputs = {"a": [1, 3, "H", "W"], "b": [1, 3, "H", "W"]}
    proto = model(nodes, inputs, ["sum", "y"], {"w": image(3, 3, 3, 3)})
    tiled = lc.tiled(lc.load(proto, threads=1), tile=16)
    a, b = image(1, 3, 40, 40), image(1, 3, 40, 40)
    whole = tiled.whole(a, b=b)
    for name, array in tiled.run({"a": a, "b": b}).items():
        np.testing.assert_array_equal(array, whole[name])
    for arrays, named in (((a, b, a), {}), ((a, b), {"b": b}), ((a,), {}), ((), {})):
        with pytest.raises(InputError, match="arrays|'b'|given"):
            tiled.whole(*arrays, **named)


def test_mapped_files_stay_out_of_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/smaps").exists():
        pytest.skip("only Linux says which pages of a file a process holds")
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1, 3, 300, 2000))
    x[:] = np.random.default_rng(0).integers(0, 256, x.shape, np.uint8)
    x.flush()
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, (1, 4, 300, 2000))
    tiled = lc.tiled(lc.load(segmenter(), threads=1), tile=(200, 300))
    tiled(x, out=y, journal=tmp_path / "tiles")
    assert tiled.plan.tiles > 8
    held, name = {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Rss:":
            held[name] = held.get(name, 0) + int(words[1])
        elif not words[0].endswith(":"):
            name = words[-1]
    assert held[str(tmp_path / "x.npy")] < 100  # KiB
    assert held[str(tmp_path / "y.npy")] < 100
    np.testing.assert_array_equal(y, tiled.whole(np.array(x)))


KEPT = [
    (segmenter, 16, 140, True),
    (segmenter, 24, (140, 150), True),
    (segmenter, 100, 150, False),
    (segmenter, 1, 140, True),
    (mobile_network, 4, (80, 100), True),
    (mobile_network, 5, (90, 80), True),
    (mobile_network, 30, 60, False),
]


@pytest.mark.drawn
@pytest.mark.parametrize(("network", "chunk", "tile", "kept"), KEPT)
def test_windows_keep_to_chunks_of_the_result(
    network: Callable[[], onnx.ModelProto], chunk: int, tile: Any, kept: bool
) -> None:
    class Chunked:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.array = np.full(shape, np.nan, _FLOAT)
            self.shape, self.dtype, self.chunks = shape, self.array.dtype, (1, 2, chunk, chunk)
            self.begins = set[int]()

        def __setitem__(self, index: Any, part: np.ndarray) -> None:
            assert np.isnan(self.array[index]).all()
            self.array[index] = part
            self.begins |= {each.start for each in index[2:]}

    net, x = lc.load(network(), threads=1), image(1, 3, 300, 360)
    tiled = lc.tiled(net, tile=tile)
    out = Chunked(net(x).shape)
    tiled(x, out=out)
    np.testing.assert_array_equal(out.array, tiled.whole(x))
    assert tiled.plan.tiles > 3
    assert tiled.plan.keeps_chunks == kept
    assert not kept or all(begin % chunk == 0 for begin in out.begins)


def test_what_reads_all_of_an_image_is_refused_by_name() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["h"], axis=3, name="rows")]
    nodes.append(helper.make_node("Softmax", ["h"], ["y"], axis=2, name="columns"))
    net = lc.load(model(nodes, {"x": [1, 3, "H", "W"]}, ["y"]), threads=1)
    for side in (1, 8, 100):
        with pytest.raises(UnsupportedError, match=r"rows|columns"):
            lc.tiled(net)(image(1, 3, side, side))
