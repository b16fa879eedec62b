"""Zarr arrays and OME-Zarr images: axes by name, what is made is what is read, hostile folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from leanconv.errors import InputError
from leanconv.images import create_image, open_image, reopen_image
from support.hostile import bounded

zarr = pytest.importorskip("zarr", reason="leanconv[images] is not installed")

X = np.random.default_rng(0).integers(0, 200, (3, 40, 50), np.uint8)


def test_arrays(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    made = zarr.create_array(path, shape=X.shape, dtype=X.dtype, chunks=(1, 16, 16))
    made[:] = X
    found = open_image(path)
    assert not hasattr(found, "layout")
    np.testing.assert_array_equal(found[:, 3:30, 20:], X[:, 3:30, 20:])
    assert open_image(path, "CYX").layout == "CYX"
    with pytest.raises(InputError, match="no level 1"):
        open_image(path, level=1)


@pytest.mark.parametrize("version", ["0.1", "0.3", "0.4", "0.5"])
def test_ome_zarr_images(tmp_path: Path, version: str) -> None:
    """As other programs write them."""
    path = tmp_path / "x.ome.zarr"
    group = zarr.create_group(str(path), zarr_format=3 if version == "0.5" else 2)
    shape = (1, 3, 1, 40, 50) if version == "0.1" else X.shape
    for level, step in enumerate((1, 2)):
        part = X.reshape(shape)[..., ::step, ::step]
        group.create_array(f"s/{level}", data=part, chunks=(*part.shape[:-2], 16, 16))
    image = {"version": version, "datasets": [{"path": f"s/{n}"} for n in (0, 1)]}
    if version == "0.3":
        image["axes"] = ["c", "y", "x"]
    elif version != "0.1":
        kinds = {"c": "channel", "y": "space", "x": "space"}
        image["axes"] = [{"name": name, "type": kind} for name, kind in kinds.items()]
    if version == "0.5":
        group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    else:
        group.attrs["multiscales"] = [image]
    found = open_image(path)
    assert found.layout == ("TCZYX" if version == "0.1" else "CYX")
    np.testing.assert_array_equal(found[..., 3:30, 20:].reshape(3, 27, 30), X[:, 3:30, 20:])
    assert open_image(path, level=1).shape == (*shape[:-2], 20, 25)
    with pytest.raises(InputError, match="2 levels"):
        open_image(path, level=2)


def test_an_ome_zarr_image_is_made(tmp_path: Path) -> None:
    path = tmp_path / "y.ome.zarr"
    out = create_image(path, X.shape, X.dtype, "CYX", scale=[1, 0.5, 0.5])
    out[:, :20], out[:, 20:] = X[:, :20], X[:, 20:]
    found = open_image(path)
    assert found.layout == "CYX"
    np.testing.assert_array_equal(found[:], X)
    ome = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]
    (image,) = ome["multiscales"]
    assert ome["version"] == "0.5"
    assert [axis["name"] for axis in image["axes"]] == ["c", "y", "x"]
    (level,) = image["datasets"]
    assert level["coordinateTransformations"] == [{"type": "scale", "scale": [1, 0.5, 0.5]}]
    with pytest.raises(InputError, match="is there already"):
        create_image(path, X.shape, X.dtype, "CYX")
    with pytest.raises(InputError, match="in this order"):
        create_image(tmp_path / "z.ome.zarr", X.shape, X.dtype, "YXC")


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    create_image(path, X.shape, X.dtype)[:] = X
    left, others = path / "c" / f"0.{'0a' * 16}.partial", path / "c" / "mine.partial"
    left.touch()
    others.touch()
    reopen_image(path, X.shape, X.dtype)[:, :9] = 0
    assert not left.exists()
    assert others.exists()
    with pytest.raises(InputError, match="expected uint8"):
        reopen_image(path, (3, 40, 51), X.dtype)


def test_arrays_are_made_with_their_axes(tmp_path: Path) -> None:
    out = create_image(tmp_path / "y.zarr", (1, 2, 700, 1100), "float32", "NCHW")
    assert out.array.chunks == (1, 2, 512, 512)
    assert open_image(tmp_path / "y.zarr").layout == "NCHW"
    out = create_image(tmp_path / "z.zarr", (50, 4000, 600, 600), "float32", "NCHW")
    assert np.prod(out.array.chunks) * 4 <= 1 << 24


# -- folders that somebody made to mislead ---------------------------------------------------------
def test_codecs_that_run_what_a_file_says_are_refused(tmp_path: Path) -> None:
    """Zarr 2 knows a codec that unpickles."""
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), data=X, zarr_format=2, chunks=X.shape, compressors=None)
    described = json.loads((path / ".zarray").read_text())
    (path / "0.0.0").write_bytes(b"cos\nsystem\n(S'touch " + bytes(path / "ran") + b"'\ntR.")
    for where in ("filters", "compressor"):
        codec = {"id": "pickle", "protocol": 2}
        held = {**described, where: [codec] if where == "filters" else codec}
        (path / ".zarray").write_text(json.dumps(held))
        with pytest.raises(InputError, match="expected"):
            open_image(path)[:]
    assert not (path / "ran").exists()


def test_chunks_without_a_bound_and_what_is_no_number_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(1 << 20, 1 << 20), dtype="u1", chunks=(1 << 18, 1 << 18))
    with bounded(), pytest.raises(InputError, match="chunks of"):
        open_image(path)
    path = str(tmp_path / "c.zarr")
    zarr.create_array(path, shape=(4, 4), dtype="c8")
    with pytest.raises(InputError, match="numbers"):
        open_image(path)


def test_damaged_descriptions(tmp_path: Path) -> None:
    path, random = tmp_path / "x.ome.zarr", Random(0)
    create_image(path, X.shape, X.dtype, "CYX")[:] = X
    ends = []
    for file in (path / "zarr.json", path / "0" / "zarr.json"):
        whole = file.read_bytes()
        for _ in range(40):
            text = bytearray(whole)
            place = random.randrange(len(text))
            text[place : place + random.choice([0, 1, 20])] = random.choice(
                [b"9", b"null", b"-1", b'"..', b"[", b"{}", b"x" * 9, b"1e400"]
            )
            file.write_bytes(text)
            with bounded():
                try:
                    found = open_image(path)
                    found[tuple(slice(0, 9) for _ in found.shape)]
                    ends.append("read")
                except InputError as error:
                    ends.append("refused" if "expected" in str(error) else str(error))
        file.write_bytes(whole)
    assert set(ends) == {"read", "refused"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "file.zarr").touch()
    (tmp_path / "fifo.zarr").mkdir()
    os.mkfifo(tmp_path / "fifo.zarr" / "zarr.json")
    (tmp_path / "huge.zarr").mkdir()
    (tmp_path / "huge.zarr" / "zarr.json").touch()
    os.truncate(tmp_path / "huge.zarr" / "zarr.json", 1 << 40)
    zarr.create_group(str(tmp_path / "group.zarr"))
    for name in ("empty", "file", "fifo", "huge", "group", "none"):
        with bounded(), pytest.raises(InputError, match="expected"):
            open_image(tmp_path / f"{name}.zarr")
