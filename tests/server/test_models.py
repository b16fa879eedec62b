"""Files and folders that are served: names, versions, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from leanconv.errors import InputError, LeanConvError, UnsupportedError
from leanconv.server.models import sources
from support.hostile import node
from support.onnx_models import model as onnx_model
from support.served import serving, small_net


def test_names_of_models(tmp_path: Path) -> None:
    a, b = small_net(tmp_path / "a.onnx"), small_net(tmp_path / "b" / "3" / "model.onnx")
    found = sources([a, f"c={b}", str(tmp_path)][:2])
    assert [(each.name, each.version) for each in found] == [("a", "1"), ("c", "1")]
    assert [(e.name, e.version) for e in sources([str(tmp_path)])] == [("a", "1"), ("b", "3")]
    with pytest.raises(InputError, match="two models are 'a' of version 1"):
        sources([a, str(tmp_path)])
    with pytest.raises(InputError, match="holds no model"):
        sources([str(tmp_path / "b")])
    with pytest.raises(InputError, match="no part of an address"):
        sources([small_net(tmp_path / "q" / "a?b.onnx")])


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(LeanConvError, match=r"bad\.onnx"):
        with serving([str(tmp_path / "bad.onnx")]):
            pass
    with pytest.raises(InputError, match="cannot be read|no such"):
        with serving([str(tmp_path / "none.onnx")]):
            pass
    made = onnx_model([node("Cast", "x", "y", to=17)], {"x": (1, 3)}, ["y"], opset=19)  # float8
    file = tmp_path / "float8.onnx"
    made.graph.output[0].type.tensor_type.elem_type = 17
    file.write_bytes(made.SerializeToString())
    with pytest.raises(UnsupportedError, match="Open Inference Protocol lacks"):
        with serving([str(file)]):
            pass
