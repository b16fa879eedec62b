"""Names in a model are text: no terminal obeys them, no browser runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from support.onnx_models import model

NAME = "<script>alert(1)</script>\x1b[2J\x1b]0;title\x07\r&\u202e"
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network whose node, output and metadata are named so."""
    node = helper.make_node("Conv", ["x", "w"], [NAME + "y"], name=NAME, pads=[1, 1, 1, 1])
    held = {"w": np.ones((4, 3, 3, 3), "f4")}
    proto = model([node], {"x": (1, 3, 8, 8)}, [NAME + "y"], held)
    helper.set_model_props(proto, {"labels": json.dumps([NAME] * 4)})
    path = tmp_path_factory.mktemp("hostile") / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "--json"), ("verify",)])
def test_no_terminal_obeys_a_name(call: Call, hostile: str, arguments: tuple[str, ...]) -> None:
    result = call(arguments[0], hostile, *arguments[1:])
    assert result.code == 0, result.err
    assert "script" in result.out
    shown = [c for c in result.out + result.err if not c.isprintable() and c != "\n"]
    assert shown == []


def test_no_browser_runs_a_name(call: Call, hostile: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call("explain", hostile, "--html", str(page)).code == 0
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;" in text
    assert "<script" not in text
