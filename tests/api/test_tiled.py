"""Networks in tiles: no seams, bounded memory, refusals that name the node, killed runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import leanconv as lc
from leanconv.errors import BudgetError, InputError, SpecError, UnsupportedError
from support.local_networks import local_network
from support.onnx_models import model

_FLOAT = np.float32


def image(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(_FLOAT)


def w(*shape: int) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return random.uniform(-1, 1, shape).astype(_FLOAT) / np.sqrt(np.prod(shape[1:])).astype(_FLOAT)


def check_seamless(proto: onnx.ModelProto, x: np.ndarray, tile: Any, **options: Any) -> int:
    """Tiles have the bits of the whole; how many there were."""
    tiled = lc.tiled(lc.load(proto, threads=1, **options), tile=tile)
    whole = tiled.whole(x)
    out = np.full(whole.shape, np.nan, whole.dtype)
    assert tiled(x, out=out) is out
    np.testing.assert_array_equal(out, whole)
    return tiled.plan.tiles


SIZES = {1: (104,), 2: (56, 72), 3: (24, 24, 32)}


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    rank=st.sampled_from([1, 2, 2, 2, 3]),
    tile=st.integers(5, 40),
    multiple=st.integers(1, 6),
    local=st.sampled_from([True, True, True, False]),
)
def test_any_network_with_any_tile(
    seed: int, rank: int, tile: int, multiple: int, local: bool
) -> None:
    """The same bits as the whole, or a refusal that names the node or the least tile."""
    proto = local_network(seed, rank, layers=5, local=local)
    sizes = [8 * multiple, 40, 16][-rank:] if rank > 1 else [104 * multiple]
    said = ""
    try:
        check_seamless(proto, image(1, 3, *sizes), tile)
    except (UnsupportedError, InputError) as error:
        said = str(error)
    if not local:
        assert any(f"node '{node.name}'" in said for node in proto.graph.node), said
    else:
        assert not said or "at least" in said or "empty" in said or "margins" in said, said


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("rank", "seed"), [(1, 0), (1, 1), (1, 1139), *((2, n) for n in range(6)), (3, 0)]
)
def test_random_networks_have_no_seams(rank: int, seed: int) -> None:
    proto = local_network(seed, rank)
    x = image(1, 3, *SIZES[rank])
    tile = 8 if rank > 1 else 12 if seed == 1139 else 20
    while tile < max(SIZES[rank]):
        try:
            check_seamless(proto, x, tile)
            break
        except InputError as error:  # all of such a tile is margin
            tile = max(map(int, str(error).rpartition("at least ")[2].split("x")))
    np.testing.assert_allclose(
        lc.tiled(lc.load(proto, threads=1)).whole(x), lc.load(proto)(x), rtol=1e-3, atol=1e-4
    )


def test_chains_of_elementwise_operations() -> None:
    """They read pixel by pixel, and a number of each channel as it is."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1] * 4),
        helper.make_node("Softsign", ["h"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["m"]),
        helper.make_node("Mish", ["m"], ["g"]),
        helper.make_node("Conv", ["g", "v"], ["y"], pads=[1] * 4),
    ]
    held = {"w": w(6, 3, 3, 3), "v": w(2, 6, 3, 3), "c": w(6, 1, 1)}
    proto = model(nodes, {"x": ["N", 3, "H", "W"]}, ["y"], held, 18)
    tiled = lc.tiled(lc.load(proto, threads=1), tile=24)
    tiled.bind((2, 3, 50, 61))
    ops = [node.op for node in tiled.plan.windows.window.nodes]
    assert ops == ["Conv", "Expression", "Conv"]
    check_seamless(proto, image(2, 3, 50, 61), (24, 20))


def conv_net(kernel: int = 3, channels: int = 16, **attributes: Any) -> onnx.ModelProto:
    """Two convolutions of many channels, such as transforms are chosen for."""
    pad = kernel // 2
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], name="first", pads=[pad] * 4, **attributes),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["y"], name="second", pads=[pad] * 4),
    ]
    weights = {"a": w(channels, 8, kernel, kernel), "b": w(8, channels, kernel, kernel)}
    return model(nodes, {"x": ["N", 8, "H", "W"]}, ["y"], weights)


@pytest.mark.parametrize(
    "algorithm",
    ["direct", "winograd:m=2", "winograd:m=4", "winograd:m=3x5", "im2col", "im2win", "fft"],
)
def test_algorithms(algorithm: str) -> None:
    proto = conv_net()
    named = {"first": algorithm, "second": algorithm}
    assert check_seamless(proto, image(2, 8, 50, 61), (24, 20), algorithms=named) >= 12


@pytest.mark.parametrize("kernel", [5, 7])
def test_winograd_of_strides_and_long_kernels(kernel: int) -> None:
    named = {"first": "winograd:m=2", "second": "direct"}
    proto = conv_net(kernel, strides=[2, 2])
    assert check_seamless(proto, image(1, 8, 90, 77), 50, algorithms=named) > 1


def test_dilated_winograd() -> None:
    named = {"first": "winograd:m=2", "second": "direct"}
    proto = conv_net(dilations=[2, 2])
    assert check_seamless(proto, image(1, 8, 60, 44), 24, algorithms=named) > 1


def test_several_inputs_and_outputs_of_other_strides() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Add", ["h", "small"], ["half"]),
        helper.make_node("Conv", ["half", "b"], ["quarter"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Resize", ["half", "", "s"], ["full"], mode="linear"),
        helper.make_node("ReduceMean", ["v"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["full", "m"], ["scaled"]),
    ]
    inputs = {"x": [1, 3, "H", "W"], "small": [1, 8, "h", "w"], "v": [1, 4, 1, 1]}
    constants = {"a": w(8, 3, 3, 3), "b": w(8, 8, 3, 3), "s": np.array([1, 1, 2, 2], _FLOAT)}
    proto = model(nodes, inputs, ["quarter", "scaled"], constants)
    given = {"x": image(1, 3, 64, 48), "small": image(1, 8, 32, 24), "v": image(1, 4, 1, 1)}
    tiled = lc.tiled(lc.load(proto, threads=1), tile=24)
    whole = tiled.whole(**given)
    found = tiled.run(given)
    assert tiled.plan.tiles > 4
    assert list(found) == ["quarter", "scaled"]
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(InputError, match="several|outputs"):
        tiled(*given.values())


def test_a_limit_is_kept_and_a_plan_explained() -> None:
    proto = local_network(3)
    tiled = lc.tiled(lc.load(proto, threads=1), memory_limit="512 KiB")
    plan = tiled.bind((1, 3, 4096, 2048))
    assert plan.memory_bytes <= 512 * 1024
    assert plan.tiles > 16
    assert f"{plan.tiles} tiles" in tiled.explain()
    with pytest.raises(BudgetError) as refused:
        lc.tiled(lc.load(proto, threads=1), memory_limit=5000).bind((1, 3, 4096, 2048))
    least = refused.value.smallest_bytes
    small = lc.tiled(lc.load(proto, threads=1), memory_limit=least).bind((1, 3, 4096, 2048))
    assert small.memory_bytes <= least
    x = image(1, 3, 256, 264)
    np.testing.assert_array_equal(tiled(x), tiled.whole(x))


def net(*nodes: Any, outputs: tuple[str, ...] = ("y",), **constants: np.ndarray) -> onnx.ModelProto:
    """Nodes behind a convolution."""
    first = helper.make_node("Conv", ["x", "w"], ["h"], pads=[1] * 4)
    weights = {"w": w(4, 3, 3, 3), **constants}
    return model([first, *nodes], {"x": [1, 3, "H", "W"]}, outputs, weights)


GLOBAL = {
    "global pooling": net(
        helper.make_node("GlobalAveragePool", ["h"], ["g"], name="squeeze"),
        helper.make_node("Mul", ["h", "g"], ["y"]),
    ),
    "instance norm": net(
        helper.make_node("InstanceNormalization", ["h", "s", "s"], ["y"], name="squeeze"),
        s=w(4),
    ),
    "softmax over space": net(
        helper.make_node("Softmax", ["h"], ["s"], axis=3, name="squeeze"),
        helper.make_node("Softmax", ["s"], ["y"], axis=2, name="squeeze"),
    ),
    "places in the image": net(
        helper.make_node(
            "MaxPool", ["h"], ["v", "y"], kernel_shape=[2, 2], strides=[2, 2], name="squeeze"
        )
    ),
    "corners": net(
        helper.make_node(
            "Resize",
            ["h", "", "s"],
            ["y"],
            mode="linear",
            coordinate_transformation_mode="align_corners",
            name="squeeze",
        ),
        s=np.array([1, 1, 2, 2], _FLOAT),
    ),
    "a third": net(
        helper.make_node("Resize", ["h", "", "s"], ["y"], mode="linear", name="squeeze"),
        s=np.array([1, 1, 3, 3], _FLOAT),
    ),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_what_is_not_local_is_refused(name: str) -> None:
    tiled = lc.tiled(lc.load(GLOBAL[name], threads=1), tile=32)
    with pytest.raises(UnsupportedError, match="squeeze"):
        tiled(image(1, 3, 96, 96))


def test_an_axis_that_is_read_whole_is_not_cut() -> None:
    proto = net(helper.make_node("Softmax", ["h"], ["y"], axis=3, name="rows"))
    tiled = lc.tiled(lc.load(proto, threads=1), tile=16)
    x = image(1, 3, 64, 48)
    np.testing.assert_array_equal(tiled(x), tiled.whole(x))
    assert tiled.plan.tile_shapes["x"] == (1, 3, 16, 48)
    assert "because of node 'rows'" in tiled.explain()


def test_wrong_arguments() -> None:
    loaded = lc.load(conv_net(), threads=1)
    for tile in (0, -1, "8", [], [8, 1.5]):
        with pytest.raises(SpecError, match="tile"):
            lc.tiled(loaded, tile=tile)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="net"):
        lc.tiled("model.onnx")  # type: ignore[arg-type]
    tiled = lc.tiled(loaded, tile=16)
    x = image(1, 8, 40, 40)
    for wrong in (x[0], x.astype(np.float64), x[:, :3], 3):
        with pytest.raises(InputError, match="'x'"):
            tiled(wrong)
    for out in (np.empty((1, 8, 40, 41), _FLOAT), np.empty((1, 8, 40, 40)), 3):
        with pytest.raises(InputError, match="out"):
            tiled(x, out=out)
    with pytest.raises(InputError, match="in the memory of input 'x'"):
        tiled(x, out=x)
    with pytest.raises(InputError, match="'x'"):
        tiled.whole([[1.0]])
    assert tiled(x[:0]).shape == (0, 8, 40, 40)
    assert "0.00 times the pixels" in tiled.explain()
    fixed = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3, 8, 8]}, ["y"])
    of_one_size = lc.tiled(lc.load(fixed))
    with pytest.raises(InputError, match="fixes the shape"):
        of_one_size(image(1, 3, 8, 8))
    with pytest.raises(InputError, match="2 axes"):
        lc.tiled(loaded, tile=(8, 8, 8))(x)


class StoppedError(Exception):
    pass


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    proto, x = conv_net(), image(2, 8, 40, 50)
    tiled = lc.tiled(lc.load(proto, threads=1), tile=20)
    expected, journal = tiled.whole(x), tmp_path / "y.tiles"
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, expected.shape)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "computing tiles" and done == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        tiled(x, out=out, journal=journal, progress=stop)
    with journal.open("ab") as file:
        file.write(b"1")  # as if killed amid a line
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    for held in changed.graph.initializer:
        array = onnx.numpy_helper.to_array(held)
        held.CopyFrom(onnx.numpy_helper.from_array(2 * array, held.name))
    other = lc.tiled(lc.load(changed, threads=1), tile=20)
    with pytest.raises(InputError, match="another network"):
        other(x, out=out, journal=journal)
    calls: list[int] = []
    begun = np.array(out)
    assert not np.array_equal(begun, expected)
    out[:] = np.where(begun == expected, begun, np.nan)
    tiled(x, out=out, journal=journal, progress=lambda _, done, total: calls.append(done))
    np.testing.assert_array_equal(out, expected)
    assert not journal.exists()
    journal.write_text("leanconv tiles 1 other\n")
    with pytest.raises(InputError, match="another network"):
        tiled(x, out=out, journal=journal)
    journal.write_text("notes")
    with pytest.raises(InputError, match="no journal"):
        tiled(x, out=out, journal=journal)
    assert journal.read_text() == "notes"
    with pytest.raises(InputError, match="no out for 'y'"):
        tiled(x, journal=tmp_path / "new")


def test_parts_are_read_and_converted() -> None:
    """Of an image of bytes that gives slices and nothing else."""

    class Slices:
        def __init__(self, array: np.ndarray) -> None:
            self.shape, self.dtype, self._array = array.shape, array.dtype, array
            self.most = 0

        def __getitem__(self, index: Any) -> np.ndarray:
            part = self._array[index]
            self.most = max(self.most, part.size)
            return part

    codes = np.random.default_rng(1).integers(0, 256, (1, 8, 64, 64), np.uint8)
    tiled = lc.tiled(lc.load(conv_net(), threads=1), tile=20)
    given = Slices(codes)
    np.testing.assert_array_equal(tiled(given), tiled.whole(codes.astype(_FLOAT)))
    assert 0 < given.most < codes.size // 4


def test_every_pixel_is_written_once() -> None:
    tiled = lc.tiled(lc.load(conv_net(), threads=1), tile=(16, 24))
    windows = tiled.bind((2, 8, 45, 70)).windows
    counts = np.zeros((2, 8, 45, 70), int)
    for tile in windows.tiles():
        counts[tile.writes["y"]] += 1
        given = [g.stop - g.start for g in tile.gives["y"]]
        assert given == [s.stop - s.start for s in tile.writes["y"]]
    assert (counts == 1).all()
    assert len({str(tile.reads["x"]) for tile in windows.tiles()}) == windows.count


def test_images_smaller_than_a_tile() -> None:
    tiled = lc.tiled(lc.load(conv_net(), threads=1), tile=64)
    for height, width in itertools.product((1, 5, 64), (3, 64)):
        x = image(1, 8, height, width)
        np.testing.assert_array_equal(tiled(x), tiled.whole(x))
        assert tiled.plan.tiles == 1
