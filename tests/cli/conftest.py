"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import leanconv
from leanconv.cli import output
from leanconv.cli.main import main
from leanconv.errors import ModelError
from support.cli_fakes import Call, FakeNetwork, Result


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    """The network that `leanconv.load` returns for every file but `missing.onnx`."""
    fake = FakeNetwork()

    def load(model: str, **options: Any) -> FakeNetwork:
        if str(model) == "missing.onnx":
            raise FileNotFoundError(2, "No such file or directory", model)
        if str(model) == "broken.onnx":
            raise ModelError("broken.onnx is\nno ONNX file; \x1b[31mexpected one")
        fake.options = options
        return fake

    monkeypatch.setitem(vars(leanconv), "load", load)
    return fake


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command line in this process, where nothing takes so long that it is worth a line."""
    monkeypatch.setattr(output, "PATIENCE_S", 60.0)

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # argparse
            code = stop.code if isinstance(stop.code, int) else 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., str]:
    """Write a PNG of one colour and return its name."""
    from PIL import Image

    def write(value: int | Sequence[int], size: tuple[int, int] = (8, 8), mode: str = "L") -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.png"
        colour = value if isinstance(value, int) else tuple(value)
        Image.new(mode, size, colour).save(file)
        return str(file)

    return write
