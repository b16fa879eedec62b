"""The model for KServe, where KServe is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from support.served import small_net


def test_a_model_answers(tmp_path: Path) -> None:
    kserve = pytest.importorskip("kserve", reason="kserve is not installed")
    from leanconv.kserve import LeanConvModel

    path = small_net(tmp_path / "one.onnx")
    model = LeanConvModel("one", path, threads=1)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    given = kserve.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=True)
    request = kserve.InferRequest("one", [given], request_id="7")
    with pytest.raises(lc.InputError, match="call load"):
        model.predict(request)
    assert model.load()
    answer = model.predict(request)
    expected = lc.load(path, threads=1, reproducible=True)(x)
    assert np.array_equal(answer.outputs[0].as_numpy().reshape(expected.shape), expected)
    assert (answer.id, answer.model_name) == ("7", "one")


def test_without_kserve(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kserve", None)
    monkeypatch.delitem(sys.modules, "leanconv.kserve", raising=False)
    with pytest.raises(lc.MissingExtraError, match="pip install kserve"):
        import leanconv.kserve  # noqa: F401
