"""What runs in tiles know of the files that they touch: of images and results, by any handle."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import shared_memory
from pathlib import Path
from random import Random
from select import select
from threading import Thread
from typing import Any, Literal

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api import image_places, tile_run
from leanconv.api.image_places import are_one, place_of
from leanconv.api.tiled import Tiled
from leanconv.errors import InputError, LeanConvError
from leanconv.images import create_image, open_image
from leanconv.progress import Progress
from support.onnx_models import model

_FLOAT = np.float32
SHAPE = (1, 1, 90, 70)


def mean_net() -> Any:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
    return model([node], {"x": ["N", 1, "H", "W"]}, ["y"], {})


@pytest.fixture(scope="module")
def tiled() -> Tiled:
    return lc.tiled(lc.load(mean_net(), threads=1), tile=24)


def pixels(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1, 2, shape).astype(_FLOAT)


@pytest.fixture(autouse=True)
def noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are noted as soon as the one before is, not every second."""
    monkeypatch.setattr(tile_run, "_SECONDS", 0)
    monkeypatch.setattr(tile_run, "_RARELY", 0)


class StoppedError(Exception):
    pass


def stop_at(tile: int) -> Progress:
    def stop(stage: str, done: int, _total: int) -> None:
        if stage == "computing tiles" and done == tile:
            raise StoppedError

    return stop


def stopped(tiled: Tiled, x: Any, out: Any, journal: Path, tile: int = 7) -> None:
    with pytest.raises(StoppedError):
        tiled(x, out=out, journal=journal, progress=stop_at(tile))


# -- one file by two handles -----------------------------------------------------------------------
def mapped(path: Path, mode: Literal["r", "r+", "c"] = "r+") -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode=mode)
    return array


def test_a_file_is_not_written_in_place(tiled: Tiled, tmp_path: Path) -> None:
    path, x = tmp_path / "x.npy", pixels()
    np.save(path, x)
    os.symlink(path, tmp_path / "symlink.npy")
    os.link(path, tmp_path / "hard link.npy")
    outs = {
        "another mapping": mapped(path),
        "a symbolic link": mapped(tmp_path / "symlink.npy"),
        "a hard link": mapped(tmp_path / "hard link.npy"),
        "raw": np.memmap(path, _FLOAT, "r+", path.stat().st_size - x.nbytes, SHAPE),
    }
    images = [mapped(path, "r"), mapped(path, "c"), open_image(path), mapped(path).view(np.ndarray)]
    for out in outs.values():
        for image in images:
            with pytest.raises(InputError, match=r"in the memory of input 'x', or in its file \("):
                tiled(image, out=out)
    np.testing.assert_array_equal(np.load(path), x)
    private = mapped(path, "c")  # its pages are its own when written
    np.testing.assert_array_equal(tiled(images[0], out=private), tiled.whole(x))
    os.rename(path, tmp_path / "other.npy")
    np.save(path, x)  # another file of the name
    np.testing.assert_array_equal(tiled(images[0], out=mapped(path)), tiled.whole(x))


def test_parts_of_one_file(tiled: Tiled, tmp_path: Path) -> None:
    """Refused where any byte is in both, and only there."""
    whole = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", _FLOAT, (2, 2, 90, 70, 2))
    other = mapped(tmp_path / "x.npy")
    whole[:] = pixels(1, whole.shape)
    for image, out in (
        (whole[:1, :1, ..., 0], other[:1, :1, ..., 1]),  # channels beside each other
        (whole[:1, :1, ..., 0], other[1:, :1, ..., 0]),
        (whole[1:, 1:, ..., 1], other[1:, :1, ::-1, :, 1]),
    ):
        expected = tiled.whole(np.array(image))
        np.testing.assert_array_equal(tiled(image, out=out), expected)
    flat = [each.reshape(-1) for each in (whole, other)]
    size = 90 * 70
    for begin in (0, 1, size - 1):
        out = flat[1][begin:][:size].reshape(SHAPE)
        with pytest.raises(InputError, match="in its file"):
            tiled(flat[0][:size].reshape(SHAPE), out=out)
    backwards = other[:1, :1, ::-1, ::-1, 0]
    with pytest.raises(InputError, match="in its file"):
        tiled(whole[:1, :1, ..., 0], out=backwards)


def test_shared_memory_is_known_by_two_names(tiled: Tiled) -> None:
    held = shared_memory.SharedMemory(create=True, size=2 * pixels().nbytes)
    again = shared_memory.SharedMemory(held.name)
    try:
        image = np.ndarray(SHAPE, _FLOAT, held.buf)
        out = np.ndarray(SHAPE, _FLOAT, again.buf)
        beside = np.ndarray(SHAPE, _FLOAT, again.buf, pixels().nbytes)
        image[:] = pixels()
        with pytest.raises(InputError, match="in its file"):
            tiled(image, out=out)
        np.testing.assert_array_equal(tiled(image, out=beside), tiled.whole(pixels()))
        del image, out, beside
    finally:
        held.close()
        again.close()
        held.unlink()


def test_a_zarr_array_is_known_by_any_handle(tiled: Tiled, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="leanconv[images] is not installed")
    path, given = tmp_path / "g" / "x.zarr", {"chunks": (1, 1, 40, 40), "compressors": None}
    group = zarr.create_group(str(tmp_path / "g"))
    group.create_array("x.zarr", data=pixels(), **given)
    os.symlink(path, tmp_path / "link.zarr")
    memory = zarr.storage.MemoryStore()
    zarr.create_array(memory, name="a", data=pixels(), **given)
    zipped = zarr.storage.ZipStore(tmp_path / "x.zip", mode="w")
    zarr.create_array(zipped, name="a", data=pixels(), **given)
    folders = [
        zarr.open_array(str(path), mode="r+"),
        zarr.open_array(str(tmp_path / "link.zarr"), mode="r+"),
        group["x.zarr"],
        zarr.open_array(zarr.storage.WrapperStore(zarr.storage.LocalStore(path)), mode="r+"),
    ]
    if find_spec("fsspec"):
        folders.append(zarr.open_array(f"file://{path}", mode="r+"))
    for out in folders:
        with pytest.raises(InputError, match="in its file"):
            tiled(zarr.open_array(str(path), mode="r"), out=out)
        with pytest.raises(InputError, match="in its file"):
            tiled(open_image(path), out=out, layout="NCHW")
    chunk = next(each for each in path.rglob("*") if each.stat().st_size == 40 * 40 * 4)
    part = np.memmap(chunk, _FLOAT, "r", 0, (1, 1, 40, 40))
    assert are_one(folders[0], part)
    a, b = (zarr.open_array(memory, path="a", mode=mode) for mode in ("r", "r+"))
    assert are_one(a, b)
    assert are_one(zarr.open_array(memory.with_read_only(True), path="a", mode="r"), b)
    assert not are_one(a, zarr.create_array(memory, name="b", data=pixels(), **given))
    c, d = (zarr.open_array(zipped, path="a") for _ in range(2))
    assert are_one(c, d)
    assert not are_one(c, zarr.create_array(zipped, name="b", data=pixels(), **given))
    assert not are_one(folders[0], a)
    beside = zarr.create_array(str(tmp_path / "y.zarr"), data=pixels(1), **given)
    np.testing.assert_array_equal(tiled(folders[0], out=beside)[:], tiled.whole(pixels()))


def test_a_tiff_file_is_known_as_it_is_mapped(tiled: Tiled, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="leanconv[images] is not installed")
    path = tmp_path / "x.tif"
    tifffile.imwrite(path, pixels()[0, 0], tile=(16, 16))
    image = open_image(path)  # decoded tile by tile
    out = np.memmap(path, _FLOAT, "r+", 0, (60, 60))
    assert are_one(out, image)
    assert not are_one(np.zeros((60, 60), _FLOAT), image)
    made = create_image(tmp_path / "y.tif", SHAPE[2:], _FLOAT, "YX")
    np.testing.assert_array_equal(tiled(image, out=made)[:], tiled.whole(pixels())[0, 0])
    with pytest.raises(InputError, match="in its file"):
        tiled(open_image(tmp_path / "y.tif"), out=made)


def test_a_system_that_does_not_say_what_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy knows the names of the files that it has mapped itself."""
    monkeypatch.setattr(image_places, "mapped_place", image_places._said_by_numpy)
    path = tmp_path / "x.npy"
    np.save(path, pixels())
    os.link(path, tmp_path / "link.npy")
    one, other = mapped(path), mapped(tmp_path / "link.npy")
    assert are_one(one, other)
    assert are_one(one[..., 3:], other[..., :4])
    assert not are_one(one[..., 4:], other[..., :4])
    assert not are_one(mapped(path, "c"), one)
    assert are_one(one, mapped(path, "c"))
    assert not are_one(one, np.zeros(SHAPE, _FLOAT))
    size = path.stat().st_size - pixels().nbytes
    assert str(place_of(one[0, 0, 1:])) == f"{path} from byte {size + 280}, strides (280, 4)"


def test_handles_that_a_library_calls_equal_are_one() -> None:
    """As those of a dataset of HDF5."""

    class Dataset:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Dataset) and self.name == other.name

        def __hash__(self) -> int:
            return hash(self.name)

    assert are_one(Dataset("a"), Dataset("a"))
    assert not are_one(Dataset("a"), Dataset("b"))
    assert not are_one(np.zeros(3), Dataset("a"))


def test_results_are_not_written_over_each_other(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    both = lc.tiled(lc.load(model(nodes, {"x": ["N", 1, "H", "W"]}, ["y", "z"], {})), tile=24)
    np.save(tmp_path / "y.npy", pixels())
    outs = {"y": mapped(tmp_path / "y.npy"), "z": mapped(tmp_path / "y.npy")}
    with pytest.raises(InputError, match="out for 'z' is in the memory of out for 'y'"):
        both.run({"x": pixels()}, out=outs)


# -- what cannot be written ------------------------------------------------------------------------
def test_what_cannot_be_written_is_refused_before_anything_is_computed(
    tiled: Tiled, tmp_path: Path
) -> None:
    np.save(tmp_path / "y.npy", pixels())
    frozen = np.zeros(SHAPE, _FLOAT)
    frozen.flags.writeable = False
    held = np.zeros(SHAPE[3], _FLOAT)
    rows = np.lib.stride_tricks.as_strided(held, SHAPE, (0, 0, 0, 4), writeable=True)
    sliding = np.lib.stride_tricks.as_strided(
        np.zeros(200, _FLOAT), SHAPE, (0, 0, 4, 4), writeable=True
    )
    outs = {
        "read-only": [frozen, mapped(tmp_path / "y.npy", "r"), np.broadcast_to(held, SHAPE)],
        "over each other": [rows, sliding],
    }
    if find_spec("zarr"):
        import zarr

        zarr.create_array(str(tmp_path / "y.zarr"), data=pixels())
        outs["reading only"] = [open_image(tmp_path / "y.zarr")]
    if find_spec("tifffile"):
        import tifffile

        tifffile.imwrite(tmp_path / "y.tif", pixels(), tile=(16, 16))
        outs["expected an array to write"] = [open_image(tmp_path / "y.tif")]

    def never(stage: str, done: int, _total: int) -> None:
        assert stage != "computing tiles", done

    for said, arrays in outs.items():
        for out in arrays:
            with pytest.raises(InputError, match=said):
                tiled(pixels(), out=out, progress=never)
    for out in (np.zeros(SHAPE, _FLOAT)[..., ::-1], np.zeros(SHAPE[::-1], _FLOAT).T):
        np.testing.assert_array_equal(tiled(pixels(), out=out), tiled.whole(pixels()))


@pytest.mark.parametrize("form", [("torch.float32", SHAPE), ("float32", (1, 1, float("nan"), 5))])
def test_what_numpy_does_not_know_is_refused(tiled: Tiled, form: tuple[Any, Any]) -> None:
    class Foreign:
        dtype, shape = form

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError

        __setitem__ = __getitem__

    with pytest.raises(InputError, match="input 'x' is of .* expected a dtype of NumPy's"):
        tiled(Foreign())
    with pytest.raises(InputError, match="out for 'y' is of .* expected a dtype of NumPy's"):
        tiled(pixels(), out=Foreign())


def test_a_result_that_cannot_be_read_back_takes_no_journal(tiled: Tiled, tmp_path: Path) -> None:
    class Sink:
        shape, dtype = SHAPE, np.dtype(_FLOAT)

        def __setitem__(self, index: Any, part: np.ndarray) -> None:
            pass

    tiled(pixels(), out=Sink())
    with pytest.raises(InputError, match="can be read back"):
        tiled(pixels(), out=Sink(), journal=tmp_path / "j")
    assert not (tmp_path / "j").exists()


# -- runs that go on -------------------------------------------------------------------------------
def test_a_result_that_was_made_anew_is_computed_anew(tiled: Tiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pixels())
    x, journal = mapped(tmp_path / "x.npy", "r"), tmp_path / "j"
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, SHAPE)
    stopped(tiled, x, out, journal)
    again = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, SHAPE)  # of one inode
    counts: list[tuple[str, int]] = []
    tiled(x, out=again, journal=journal, progress=lambda stage, _, n: counts.append((stage, n)))
    np.testing.assert_array_equal(again, tiled.whole(pixels()))
    assert ("computing tiles", tiled.plan.tiles) in counts


def test_only_what_is_left_is_computed(tiled: Tiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pixels())
    x, journal = mapped(tmp_path / "x.npy", "r"), tmp_path / "j"
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, SHAPE)
    stopped(tiled, x, out, journal, 7)
    lines = journal.read_text().count("\n") - 1
    assert 1 <= lines <= 7
    counts = dict[str, int]()
    tiled(x, out=out, journal=journal, progress=lambda stage, _, n: counts.update({stage: n}))
    assert counts["checking tiles"] == lines
    assert counts["computing tiles"] == tiled.plan.tiles - lines
    np.testing.assert_array_equal(out, tiled.whole(pixels()))
    assert not journal.exists()


@pytest.mark.parametrize("memory", [True, False])
def test_images_and_results_of_another_place(tiled: Tiled, tmp_path: Path, memory: bool) -> None:
    """Refused by name where a file holds them; in memory what they hold decides."""
    frames: np.ndarray = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", _FLOAT, (2, *SHAPE))
    frames[:] = pixels(1, frames.shape)
    results: np.ndarray = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", _FLOAT, (2, *SHAPE))
    if memory:
        frames, results = np.array(frames), np.array(results)
    journal = tmp_path / "j"
    stopped(tiled, frames[0], results[0], journal)
    for image, out in ((1, 0), (0, 1)):
        if not memory:
            name = "input 'x'" if image else "out for 'y'"
            with pytest.raises(InputError, match=f"{name} was '{tmp_path}/.*, and is '{tmp_path}"):
                tiled(frames[image], out=results[out], journal=journal)
            continue
        tiled(frames[image], out=results[out], journal=journal)
        np.testing.assert_array_equal(results[out], tiled.whole(frames[image]))
        stopped(tiled, frames[0], results[0], journal)
    tiled(frames[0], out=results[0], journal=journal)
    np.testing.assert_array_equal(results[0], tiled.whole(np.array(frames[0])))


def test_a_run_does_not_go_on_with_another_ones_journal(tiled: Tiled, tmp_path: Path) -> None:
    """Neither in another thread of its process."""
    other, said = lc.tiled(lc.load(mean_net(), threads=1), tile=24), list[str]()

    def in_a_thread() -> None:
        with pytest.raises(InputError) as error:
            other(pixels(), out=np.empty(SHAPE, _FLOAT), journal=tmp_path / "j")
        said.append(str(error.value))

    def also(stage: str, done: int, _total: int) -> None:
        if stage == "computing tiles" and done == 2:
            thread = Thread(target=in_a_thread)
            thread.start()
            thread.join()

    out = np.empty(SHAPE, _FLOAT)
    tiled(pixels(), out=out, journal=tmp_path / "j", progress=also)
    assert "goes on at this moment" in said[0]
    np.testing.assert_array_equal(out, tiled.whole(pixels()))


@pytest.mark.parametrize("cut", ["image", "result"])
def test_a_chunk_that_was_cut_short_is_said(tiled: Tiled, tmp_path: Path, cut: str) -> None:
    zarr = pytest.importorskip("zarr", reason="leanconv[images] is not installed")
    x = zarr.create_array(str(tmp_path / "image.zarr"), data=pixels(), chunks=(1, 1, 40, 70))
    y = zarr.create_array(str(tmp_path / "result.zarr"), data=pixels(), chunks=(1, 1, 40, 70))
    stopped(tiled, x, y, tmp_path / "j", 9)
    for chunk in tmp_path.glob(f"{cut}.zarr/c/0/0/*/*"):
        os.truncate(chunk, chunk.stat().st_size // 2)
    what = "input 'x' cannot be read" if cut == "image" else "out for 'y' cannot be written"
    with pytest.raises(InputError, match=f"{what}: "):
        tiled(x, out=y, journal=tmp_path / "j")
    array = x if cut == "image" else y
    array.set_basic_selection(Ellipsis, pixels())  # every chunk is written anew
    tiled(x, out=y, journal=tmp_path / "j")
    np.testing.assert_array_equal(y[:], tiled.whole(pixels()))


# -- random runs -----------------------------------------------------------------------------------
class World:
    """An image and a result in files or memory, and what may happen to them between two runs."""

    def __init__(self, random: Random, folder: Path, killed: bool) -> None:
        self._random, self._folder = random, folder
        kinds = [".npy", "view", "fortran"]
        kinds += [".zarr", "sharded"] if find_spec("zarr") else []
        kinds += [".tif"] if find_spec("tifffile") else []
        kinds += [] if killed else ["memory"]
        self._x_kind, self._y_kind = random.choice(kinds), random.choice(kinds)
        self.x = self._made("x", self._x_kind, SHAPE)
        self.x[...] = pixels(random.randrange(1 << 30))
        self.y = self._made("y", self._y_kind, SHAPE)

    def __repr__(self) -> str:
        return f"{self._x_kind} to {self._y_kind}"

    def _path(self, name: str, kind: str) -> str:
        ends = {"sharded": ".zarr", "view": ".npy", "fortran": ".npy"}
        return str(self._folder / f"{name}{ends.get(kind, kind)}")

    def _made(self, name: str, kind: str, shape: tuple[int, ...]) -> Any:
        path = self._path(name, kind)
        if kind in (".zarr", "sharded"):
            import zarr

            chunks = {"chunks": (1, 1, 20, 35)} | (
                {"shards": (1, 1, 40, 70)} if kind[0] == "s" else {}
            )
            return zarr.create_array(path, shape=shape, dtype="f4", overwrite=True, **chunks)
        if kind == ".tif":
            return create_image(path, shape[2:], _FLOAT, "YX", overwrite=True)
        if kind == "memory":
            return np.zeros(shape, _FLOAT)
        larger = (*shape[:2], shape[2] + 9, shape[3] + 5) if kind == "view" else shape
        np.lib.format.open_memmap(path, "w+", _FLOAT, larger, kind == "fortran")
        return self._seen(mapped(Path(path)), kind)

    def _seen(self, array: np.ndarray, kind: str) -> np.ndarray:
        return array[..., 9:, :-5][..., ::-1, :] if kind == "view" else array

    def _opened(self, name: str, kind: str, held: Any) -> Any:
        """Another handle of the same."""
        path = self._path(name, kind)
        if kind in (".zarr", "sharded"):
            import zarr

            return zarr.open_array(path, mode="r+")
        if kind == ".tif":
            from leanconv.images import reopen_image

            return reopen_image(path, SHAPE[2:], _FLOAT, "YX")
        return held if kind == "memory" else self._seen(mapped(Path(path)), kind)

    def happen(self) -> str:
        """One thing that happens, by its name."""
        random = self._random
        deeds = [self.nothing, self.reopened, self.pixel, self.line, self.zeros, self.anew]
        deeds += [self.image, self.lost_chunk, self.cut_journal, self.changed_journal]
        deed = random.choice(deeds)
        deed()
        return deed.__name__

    def nothing(self) -> None:
        pass

    def reopened(self) -> None:
        self.x = self._opened("x", self._x_kind, self.x)
        self.y = self._opened("y", self._y_kind, self.y)

    def _written(self, array: Any, index: tuple[Any, ...], value: float) -> None:
        whole = np.array(array[...])
        whole.reshape(SHAPE)[index] = value
        array[...] = whole

    def pixel(self) -> None:
        place = self._random.randrange(90), self._random.randrange(70)
        self._written(self.x, (0, 0, *place), self._random.random())

    def line(self) -> None:
        self._written(self.y, (0, 0, self._random.randrange(90)), 0)

    def zeros(self) -> None:
        self._written(self.y, (...,), 0)

    def anew(self) -> None:
        """The result is made anew, at its place."""
        path = Path(self._path("y", self._y_kind))
        if self._random.random() < 0.5 and self._y_kind != "memory":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.y = self._made("y", self._y_kind, SHAPE)

    def image(self) -> None:
        self.x[...] = pixels(self._random.randrange(1 << 30)).reshape(self.x.shape)

    def lost_chunk(self) -> None:
        chunks = [each for each in self._folder.glob("y.zarr/c/**/*") if each.is_file()]
        if chunks:
            chunk = self._random.choice(sorted(chunks))
            chunk.unlink()

    def cut_journal(self) -> None:
        journal = self._folder / "j"
        if journal.exists():
            os.truncate(journal, self._random.randrange(journal.stat().st_size + 1))

    def changed_journal(self) -> None:
        journal = self._folder / "j"
        if journal.exists() and journal.stat().st_size:
            text = bytearray(journal.read_bytes())
            for _ in range(self._random.randrange(1, 4)):
                text[self._random.randrange(len(text))] = self._random.choice(
                    b"0123456789abcdef \n"
                )
            journal.write_bytes(text)

    def check(self, tiled: Tiled) -> None:
        x, y = (np.array(each[...]).reshape(SHAPE) for each in (self.x, self.y))
        np.testing.assert_array_equal(y, tiled.whole(x))


def one_world(seed: int, tiled: Tiled, folder: Path) -> None:
    """Runs that are stopped or killed, and what happens between them: right, or refused."""
    random = Random(seed)
    killed = random.random() < 0.5
    folder.mkdir()
    world, journal, deeds = World(random, folder, killed), folder / "j", []

    def run(progress: Progress | None = None) -> None:
        x, y = (_layout(each) for each in (world.x, world.y))
        tiled(world.x, out=world.y, layout=x, out_layout=y, journal=journal, progress=progress)

    for _ in range(random.randrange(1, 5)):
        try:
            if killed:
                kill_at(random.randrange(12), random.uniform(0, 0.003), run)
            else:
                run(stop_at(random.randrange(2, 12)))
        except StoppedError:
            pass
        except LeanConvError as error:
            deeds.append(str(error)[:90])
        deeds += [world.happen() for _ in range(random.randrange(3))]
    try:
        run()
    except LeanConvError:
        journal.unlink()
        run()
    try:
        world.check(tiled)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {world}, killed {killed}: {deeds}") from error
    assert not journal.exists()


def _layout(array: Any) -> str:
    return "NCHW"[-len(array.shape) :]


def kill_at(tile: int, later: float, run: Callable[[Progress], None]) -> None:
    """Run in a child that is killed some seconds after a tile begins, if it has not ended."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with suppress(LeanConvError):
            run(lambda _, done, __: os.write(write, b".") if done == tile else None)
        os._exit(0)
    os.close(write)
    select([read], [], [], 10)  # its tile, or its end
    os.close(read)
    time.sleep(later)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def worlds(seeds: range, tiled: Tiled, folder: Path) -> None:
    tiled(pixels())  # compiled before processes are forked
    for seed in seeds:
        one_world(seed, tiled, folder / str(seed))
        shutil.rmtree(folder / str(seed))


def test_random_runs(tiled: Tiled, tmp_path: Path) -> None:
    worlds(range(30), tiled, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("begin", range(1000, 9000, 100))
def test_many_random_runs(tiled: Tiled, tmp_path: Path, begin: int) -> None:
    worlds(range(begin, begin + 100), tiled, tmp_path)
