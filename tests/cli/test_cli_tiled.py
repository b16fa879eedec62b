"""`leanconv run --tiled` and `leanconv explain --fields`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.tile_journal import Journal
from leanconv.cli.main import main
from leanconv.images import open_image
from support.local_networks import local_network

X = np.random.default_rng(0).standard_normal((1, 3, 64, 48)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "net.onnx"
    file.write_bytes(local_network(4).SerializeToString())
    np.save(tmp_path / "x.npy", X)
    return str(file)


def test_an_image_is_run_in_tiles(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "y.npy")
    given = [model, str(tmp_path / "x.npy"), "--tiled", "--threads", "1"]
    assert main(["run", *given, "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiles"] >= 1
    np.testing.assert_array_equal(np.load(out), lc.tiled(lc.load(model, threads=1)).whole(X))
    assert not (tmp_path / "y.npy.tiles").exists()
    for wrong in ([], ["--out", "y.png"], ["--out", out, "--save", "y.npz"]):
        assert main(["run", *given, *wrong]) == 2
    assert main(["run", model, "x.png", "--tiled", "--out", out]) == 1
    held = (tmp_path / "y.npy").read_bytes()
    capsys.readouterr()
    assert main(["run", *given, "--out", out]) == 1
    assert "is there already; expected a new name" in capsys.readouterr().err
    assert (tmp_path / "y.npy").read_bytes() == held
    (tmp_path / "y.npy.tiles").touch()  # of a run that was killed as it began
    (tmp_path / "y.npy").write_bytes(b"")
    assert main(["run", *given, "--out", out]) == 0
    assert (tmp_path / "y.npy").read_bytes() == held
    assert main(["run", *given, "--out", str(tmp_path / "x.npy")]) == 2
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)
    (tmp_path / "y.npy").rename(tmp_path / "moved.npy")
    (tmp_path / "y.npy.tiles").write_text("leanconv tiles 1 x\n0\n")
    assert main(["run", *given, "--out", out]) == 1
    assert "delete the journal" in capsys.readouterr().err


def test_a_result_of_a_run_under_way_is_left_alone(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, journal = tmp_path / "y.npy", tmp_path / "y.npy.tiles"
    with Journal(journal) as held:
        held.claim()
        out.write_bytes(b"of the other run")
        given = ["run", model, str(tmp_path / "x.npy"), "--tiled", "--out", str(out)]
        assert main(given) == 1
        assert "goes on at this moment" in capsys.readouterr().err
        assert out.read_bytes() == b"of the other run"
    assert not journal.exists()
    assert main(given) == 1  # it is there, and no journal says that it may go
    assert out.read_bytes() == b"of the other run"
    assert not journal.exists()


def test_zarr_arrays(model: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    x = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, dtype=X.dtype)
    x[:] = X
    out = str(tmp_path / "y.zarr")
    given = [model, str(tmp_path / "x.zarr"), "--tiled", "--threads", "1", "--out", out]
    assert main(["run", *given]) == 0
    found = zarr.open_array(out, mode="r")[:]
    np.testing.assert_array_equal(found, lc.tiled(lc.load(model, threads=1)).whole(X))


def test_fields_are_shown(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--fields", "--shape", "1x3x256x256", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["fields"]
    assert [row["axis"] for row in rows] == [2, 3]
    assert all(row["extent"] > 1 and row["whole"] is None for row in rows)
    assert main(["explain", model, "--fields", "--shape", "1x3x256x256"]) == 0
    assert "stride" in capsys.readouterr().out
    assert main(["explain", "ic16ih8oc16oh8kh3ph1", "--fields"]) == 2


@pytest.mark.parametrize("end", [".tif", ".ome.zarr"])
def test_images_that_name_their_axes(
    model: str, tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Channels last in a TIFF of tiles; the result names its axes."""
    pytest.importorskip("zarr" if end == ".ome.zarr" else "tifffile")
    tifffile = pytest.importorskip("tifffile")
    last = X[0].transpose(1, 2, 0)
    tifffile.imwrite(tmp_path / "x.tif", last, tile=(16, 16), photometric="rgb")
    out = str(tmp_path / f"y{end}")
    given = [model, "--tiled", str(tmp_path / "x.tif"), "--threads", "1", "--out", out]
    assert main(["run", *given]) == 0
    found, whole = open_image(out), lc.tiled(lc.load(model, threads=1)).whole(X)[0]
    assert found.layout == "CYX"
    np.testing.assert_array_equal(found[:], whole)
    assert main(["run", *given]) == 1  # it is there
    last = str(tmp_path / f"last{end}")
    assert main(["run", *given[:-1], last, "--out-axes", "YXC"]) == (end == ".ome.zarr")
    if end == ".tif":
        np.testing.assert_array_equal(tifffile.imread(last), whole.transpose(1, 2, 0))
    capsys.readouterr()
    assert main(["run", *given[:-1], f"{out[: -len(end)]}2{end}", "--axes", "YX"]) == 1
    assert "layout" in capsys.readouterr().err


def test_an_option_that_would_not_be_heeded_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = ["run", model, str(tmp_path / "x.npy")], str(tmp_path / "y.npy")
    unheeded = [
        ["--fit", "crop"],
        ["--fill", "0"],
        ["--preset", "imagenet"],
        ["--repeat", "3"],
        ["--shape", "1x3x8x8"],
        ["--tune"],
        ["--shared-weights"],
        ["--draw", "x.png"],
        ["--verbose"],
    ]
    for option in unheeded:
        assert main([*given, "--tiled", "--out", out, *option]) == 2
        assert f"{option[0]} beside --tiled" in capsys.readouterr().err
    for option in (["--out", out], ["--axes", "NCHW"], ["--out-axes", "NCHW"]):
        assert main([*given, *option]) == 2
        assert f"{option[0]} without --tiled" in capsys.readouterr().err
    for option in unheeded[:2]:  # beside arrays, which are taken as they are
        assert main([*given, *option]) == 2
        assert f"{option[0]} is for pictures" in capsys.readouterr().err
    assert not (tmp_path / "y.npy").exists()


def test_a_wrong_image_says_what_is_wrong(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tifffile = pytest.importorskip("tifffile")
    pages = {"metadata": None, "photometric": "minisblack", "tile": (16, 16)}  # without axes
    tifffile.imwrite(tmp_path / "x.tif", X[0], **pages)
    np.save(tmp_path / "planes.npy", X[0])
    np.save(tmp_path / "last.npy", X[0].transpose(1, 2, 0))
    np.save(tmp_path / "rows.npy", X[0].reshape(-1, 48))
    np.save(tmp_path / "wide.npy", X.astype(np.float64))
    whole = lc.tiled(lc.load(model, threads=1)).whole(X)
    given = [model, "--tiled", "--threads", "1", "--out", str(tmp_path / "y.npy")]
    for name, axes in (("x.tif", "CYX"), ("planes.npy", "CYX"), ("last.npy", "YXC")):
        assert main(["run", *given, str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert f"the shape does not fit, as the axes {axes} it would" in said
        assert f"--axes {axes}" in said
        assert main(["run", *given, str(tmp_path / name), "--axes", axes]) == 0
        found = np.load(tmp_path / "y.npy")
        (tmp_path / "y.npy").unlink()
        np.testing.assert_array_equal(found.reshape(whole.shape), whole)
    for name, wrong in (
        ("rows.npy", "the shape does not fit\n"),
        ("wide.npy", "float32 does not hold all numbers of float64: convert"),
    ):
        capsys.readouterr()
        assert main(["run", *given, str(tmp_path / name)]) == 1
        assert wrong in capsys.readouterr().err
