"""Served networks whose outputs follow from values: answered in any order, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.ir import owner
from leanconv.server.limits import NUMBER_BYTES
from support.late_outputs import ORDERS, late_outputs
from support.onnx_models import model as onnx_model
from support.served import LIMITS, Running, binary_request, results, serving

X = np.random.default_rng(1).standard_normal((3, 3, 8, 8)).astype(np.float32)
RAW = {"parameters": {"binary_data_output": True}}


def asked(served: Running, name: str, x: np.ndarray, **head: Any) -> httpx.Response:
    """A request with raw tensors."""
    body, headers = binary_request({"x": x}, **head)
    return served.client.post(f"/v2/models/{name}/infer", content=body, headers=headers)


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
def test_all_orders_are_answered(order: Sequence[str], tmp_path: Path) -> None:
    """As JSON and raw, all outputs and one of them, of one image and of several."""
    file = tmp_path / "late.onnx"
    file.write_bytes(late_outputs(*order))
    net = lc.load(file, threads=1, reproducible=True)
    one = {"outputs": [{"name": order[-1], "parameters": {"binary_data": True}}]}
    with serving([str(file)]) as served:
        for x in (X[:1], X, X[1:2]):
            expected = net.run({"x": x})
            for head in ({}, RAW, one):
                found = results(asked(served, "late", x, **head))
                assert list(found) == ([order[-1]] if head is one else list(order))
                for name, array in found.items():
                    assert array.dtype == expected[name].dtype
                    assert array.shape == expected[name].shape
                    np.testing.assert_array_equal(array, expected[name])
        served.settled()
        assert served.client.get("/").status_code == 200
        assert "then NumPy computes" in served.client.get("/plans/late/1/0").text


def test_types_that_the_file_does_not_say(tmp_path: Path) -> None:
    file = tmp_path / "late.onnx"
    file.write_bytes(late_outputs("places", "p", typed=False))
    with serving([str(file)]) as served:
        answer = asked(served, "late", X[:1], **RAW)
        expected = lc.load(file, threads=1, reproducible=True).run({"x": X[:1]})
        for name, array in results(answer).items():
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("head", [{}, RAW], ids=["json", "raw"])
@pytest.mark.parametrize("order", [("places",), ("places", "r"), ("r", "places")], ids=",".join)
def test_results_are_counted_when_they_are_known(
    order: Sequence[str], head: dict[str, Any], tmp_path: Path
) -> None:
    """Of all outputs together, by their bytes and, as JSON, by their numbers."""
    file = tmp_path / "late.onnx"
    file.write_bytes(late_outputs(*order, side="S"))
    x = np.full((1, 3, 64, 64), 1, np.float32)  # a fifth of what it gives is not 0, or more
    expected = lc.load(file, threads=1, reproducible=True).run({"x": x})
    sent, numbers = (sum(getattr(y, n) for y in expected.values()) for n in ("nbytes", "size"))
    held = sum(owner(y).nbytes for y in expected.values())  # rooms of which results are parts
    answer_bytes = held + (sent if head else 2 * NUMBER_BYTES * numbers)
    for limit, status in ((answer_bytes, 503), (answer_bytes + 4 * x.nbytes, 200)):
        limits = replace(LIMITS, request_bytes=limit, json_bytes=2**26)
        with serving([str(file)], limits) as served:
            answer = asked(served, "late", x, **head)
            assert answer.status_code == status, answer.text
            if status == 503:
                assert "with its result" in answer.json()["error"]
                assert answer.headers["retry-after"] == "1"
            served.settled()
            few = asked(served, "late", X[:1], outputs=[{"name": order[0]}])
            assert few.status_code == 200, few.text  # others are answered as before


def test_much_json_is_refused_when_it_is_known(tmp_path: Path) -> None:
    file = tmp_path / "late.onnx"
    file.write_bytes(late_outputs("places", side="S"))
    x = np.ones((1, 3, 64, 64), np.float32)
    with serving([str(file)], replace(LIMITS, json_bytes=20_000)) as served:
        answer = asked(served, "late", x)
        assert answer.status_code == 422, answer.text
        assert "ask for binary data" in answer.json()["error"]
        assert results(asked(served, "late", x, **RAW))["places"].shape[0] == 4
        served.settled()


def test_images_are_not_mixed(tmp_path: Path) -> None:
    """Random images look as if they could be computed together; values of others decide here."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[0], keepdims=0),
        helper.make_node("Greater", ["m", "low"], ["chosen"]),
        helper.make_node("Compress", ["x", "chosen"], ["y"], axis=1),
    ]
    made = onnx_model(nodes, {"x": ("N", 4)}, ["y"], {"low": np.float32(-100)}, opset=13)
    file = tmp_path / "mixes.onnx"
    file.write_bytes(made.SerializeToString())
    x = np.ones((2, 4), np.float32)
    x[0, 0] = -200
    with serving([str(file)]) as served:
        assert results(asked(served, "mixes", x[:1], **RAW))["y"].shape == (1, 3)
        assert results(asked(served, "mixes", x, **RAW))["y"].shape == (2, 4)
        (plans,) = (each.plans for each in served.service.models)
        assert not any(group.batched for _, group in plans.groups())


def test_a_number_of_json_takes_what_is_counted(tmp_path: Path) -> None:
    """Whatever its type: bytes as text take more than bytes."""
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=2),
        helper.make_node("Identity", ["b"], ["y"]),
    ]
    file = tmp_path / "bytes.onnx"
    made = onnx_model(nodes, {"x": (1, 10_000)}, ["y"])
    made.graph.output[0].type.tensor_type.elem_type = 2
    file.write_bytes(made.SerializeToString())
    limits = replace(LIMITS, request_bytes=500_000)
    with serving([str(file)], limits) as served:
        x = np.zeros((1, 10_000), np.float32)
        assert asked(served, "bytes", x).status_code == 503  # 40 kB of input, 10 kB of results
        assert asked(served, "bytes", x, **RAW).status_code == 200
