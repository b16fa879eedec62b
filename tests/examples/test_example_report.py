"""The text files of the MobileNetV2 report: counts, round trip, messages, exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from examples.report import run_report
from examples.report.formats import (
    INPUT_FILE,
    OUTPUT_FILE,
    PARAMS_FILE,
    REPORT,
    SMALL,
    ReportFormatError,
    fold_batch_norm,
    read_params,
    read_rows,
    weights,
    write_rows,
)
from examples.report.make_files import main as make_files
from examples.report.reference import forward
from leanconv.types import FLOAT32, FLOAT64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert make_files(["--folder", str(folder), "--small", "--images", "3"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def numpy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that needs nothing installed: the float64 reference on the model's own weights."""

    def engine(model, dtype, _threads):  # type: ignore[no-untyped-def]
        params = weights(model)
        return lambda x: forward(params, SMALL, x[0].astype(np.float64))[None].astype(dtype)

    monkeypatch.setitem(run_report.ENGINES, "leanconv", engine)


def test_the_reports_counts() -> None:
    layout = REPORT.layout()
    assert sum(int(np.prod(shape)) for shape in layout.values()) == 3_487_816
    assert len(layout) == 2 * 52 + 2
    assert list(layout)[-2:] == ["classifier.weight", "classifier.bias"]
    assert list(layout.values())[:2] == [(32, 3, 3, 3), (32,)]
    assert layout["classifier.weight"] == (1000, 1280)
    assert REPORT.input_shape == (3, 244, 244)


def test_text_keeps_every_bit(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 70_000)) * 10.0 ** np.arange(
        -20, 20, 40 / 70_000
    )
    write_rows(tmp_path / "rows.txt", rows)
    assert (read_rows(tmp_path / "rows.txt", (70_000,)) == rows).all()
    first = (tmp_path / "rows.txt").read_text().split(" ", 1)[0]
    assert first == f"{rows[0, 0]:.18e}"


def test_params_round_trip(made: Path) -> None:
    params = read_params(made / PARAMS_FILE, SMALL.layout())
    expected = fold_batch_norm(weights(SMALL.model(folded=False)))
    assert set(params) == set(expected)
    assert all((params[name] == expected[name]).all() for name in params)


def test_reference_agrees_with_onnxruntime_unfolded(made: Path) -> None:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = SMALL.model(folded=False)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    images = read_rows(made / INPUT_FILE, SMALL.input_shape)
    outputs = read_rows(made / OUTPUT_FILE, (SMALL.classes,))
    for image, expected in zip(images, outputs, strict=True):
        got = session.run(None, {"input": image[None].astype(np.float32)})[0][0]
        assert np.abs(got - expected).max() < 1e-5


def test_stream_may_break_lines_anywhere(folder: Path) -> None:
    path = folder / PARAMS_FILE
    before = read_params(path, SMALL.layout())
    path.write_text("\n".join(path.read_text().split()) + "\n\n")
    after = read_params(path, SMALL.layout())
    assert all((before[name] == after[name]).all() for name in before)


@pytest.mark.parametrize("change", [-1, 1])
def test_params_of_another_count(folder: Path, change: int) -> None:
    path = folder / PARAMS_FILE
    items = path.read_text().split()
    path.write_text(" ".join(items[:-1] if change < 0 else [*items, "0"]))
    with pytest.raises(
        ReportFormatError, match=rf"got {len(items) + change:,} numbers, expected {len(items):,}"
    ):
        read_params(path, SMALL.layout())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 x3 4\n", r"line 1: item 3 is 'x3', expected a number"),
        ("1 2 3 4\n1 2 3\n", r"line 2: got 3 numbers, expected 4 \(2 x 2\)"),
        ("1 2 nan 4\n", r"line 1: item 3 is nan, expected a finite number"),
        ("1,2,3,4\n", r"line 1: item 1 is '1,2,3,4', expected a number"),
        ("\n\n", r"got no line"),
        ("1 2 3 \xff\n", r"line 1: item 4 is .*expected a number"),
    ],
)
def test_messages(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(ReportFormatError, match=message):
        read_rows(tmp_path / "rows.txt", (2, 2))


@pytest.mark.usefixtures("numpy_engine")
def test_program_and_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", str(folder), "--small", "--iterations", "2"]
    assert run_report.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("ok") == 6
    assert out.count("Average Time is:") == 2

    rows = read_rows(folder / OUTPUT_FILE, (SMALL.classes,))
    rows[1, 4] += 3e-5
    write_rows(folder / OUTPUT_FILE, rows)
    assert run_report.main([*arguments, "--dtype", "float64"]) == 1
    out = capsys.readouterr().out
    assert "image 1: max difference 3.000e-05  over 1e-05" in out
    assert out.count("ok") == 2

    write_rows(folder / OUTPUT_FILE, rows[:2])
    assert run_report.main(arguments) == 2
    assert "got 2 lines, expected 3" in capsys.readouterr().err
    (folder / PARAMS_FILE).unlink()
    assert run_report.main(arguments) == 2


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_leanconv_within_the_reports_tolerance(made: Path, dtype: str) -> None:
    arguments = ["--folder", str(made), "--small", "--iterations", "1", "--dtype", dtype]
    assert run_report.main(arguments) == 0


def test_onnxruntime_has_no_float64(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", str(made), "--small", "--engine", "onnxruntime", "--dtype", "float64"]
    assert run_report.main(arguments) == 2
    assert "got float64, expected float32" in capsys.readouterr().err
