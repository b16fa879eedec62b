"""Models and weights that are links: a link gives a model no file that it could not read anyway."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from leanconv.errors import ModelError
from leanconv.graph.onnx_import import read_model
from support.hostile import node
from support.onnx_models import model

W = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("f4")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


def saved(folder: Path) -> Path:
    """A model with its weights beside it."""
    folder.mkdir(parents=True)
    proto = model([node("Conv", "x w", "y")], {"x": (1, 3, 8, 8)}, ["y"], {"w": W})
    path = folder / "model.onnx"
    onnx.save(
        proto,
        path,
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    return path


def weights(path: Path) -> np.ndarray:
    return read_model(path).constants["w"]


@pytest.mark.parametrize("below", ["", "onnx"])
def test_a_cache_of_links_into_blobs(tmp_path: Path, below: str) -> None:
    """Hugging Face: snapshots/<revision>/model.onnx leads to ../../blobs/<hash>, weights too."""
    plain = saved(tmp_path / "plain")
    blobs, shown = tmp_path / "net" / "blobs", tmp_path / "net" / "snapshots" / "1a2b" / below
    blobs.mkdir(parents=True)
    shown.mkdir(parents=True)
    up = "../" * (3 if below else 2)
    for name, blob in (("model.onnx", "a" * 64), ("model.onnx_data", "b" * 64)):
        (blobs / blob).write_bytes((plain.parent / name).read_bytes())
        (shown / name).symlink_to(f"{up}blobs/{blob}")
    np.testing.assert_array_equal(weights(shown / "model.onnx"), W)


def test_a_link_to_a_model_whose_weights_lie_beside_the_model(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain")
    (tmp_path / "short.onnx").symlink_to(plain)
    np.testing.assert_array_equal(weights(tmp_path / "short.onnx"), W)


def test_links_of_an_archive_lead_nowhere_else(tmp_path: Path) -> None:
    """The archive holds a model that is a link, its bytes, and weights that lead out of it."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(W.tobytes())
    bytes_in = saved(tmp_path / "archive" / "blobs")
    shown = tmp_path / "archive" / "snapshots" / "1"
    shown.mkdir(parents=True)
    (shown / "model.onnx").symlink_to("../../blobs/model.onnx")
    for target in (secret, Path("../../../secret.bin"), Path("/etc/passwd"), Path("../../other")):
        (tmp_path / "archive" / "other").write_bytes(W.tobytes())
        data = shown / "model.onnx_data"
        data.unlink(missing_ok=True)
        data.symlink_to(target)
        with pytest.raises(ModelError, match="link to outside the model's folder"):
            weights(shown / "model.onnx")
        (bytes_in.parent / "model.onnx_data").unlink(missing_ok=True)
        (bytes_in.parent / "model.onnx_data").symlink_to(
            target if target.is_absolute() else Path("../..") / target.name
        )
        if (bytes_in.parent / "model.onnx_data").exists():
            with pytest.raises(ModelError, match="link to outside the model's folder"):
                weights(bytes_in)


def test_a_model_that_is_no_link_reads_no_links_into_other_folders(tmp_path: Path) -> None:
    path = saved(tmp_path / "archive" / "model")
    (tmp_path / "archive" / "blobs").mkdir()
    held = tmp_path / "archive" / "model" / "model.onnx_data"
    held.rename(tmp_path / "archive" / "blobs" / "weights")
    held.symlink_to("../blobs/weights")
    with pytest.raises(ModelError, match="link to outside the model's folder"):
        weights(path)
