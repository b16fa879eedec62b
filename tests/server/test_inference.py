"""The protocol end to end: JSON, raw tensors, metadata, health."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from support.pruned_networks import chain
from support.served import Running, binary_request, results, serving, small_net

RANDOM = np.random.default_rng(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    small_net(made / "one.onnx")
    small_net(made / "wide.onnx", width="W")
    small_net(made / "mixed.onnx", mixes=True)
    (made / "pruned.onnx").write_bytes(chain((0.95, 0.9), k=3, batch="N"))
    small_net(made / "fixed" / "2" / "model.onnx", batch=2)
    small_net(made / "fixed" / "10" / "model.onnx", batch=1)
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    with serving([str(folder)]) as made:
        yield made


def images(n: int, width: int = 8) -> np.ndarray:
    return RANDOM.standard_normal((n, 3, 8, width)).astype(np.float32)


def expected(folder: Path, name: str, x: np.ndarray) -> np.ndarray:
    return lc.load(folder / f"{name}.onnx", threads=1, reproducible=True)(x)


def test_json(served: Running, folder: Path) -> None:
    x = images(1)
    answer = served.infer("one", {"x": x}, id="an id")
    y = results(answer)["y"]
    assert np.array_equal(y, expected(folder, "one", x))
    document = answer.json()
    assert document["id"] == "an id"
    assert (document["model_name"], document["model_version"]) == ("one", "1")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 13])
def test_raw_tensors_of_any_number_of_images(served: Running, folder: Path, count: int) -> None:
    x = images(count)
    for head in ({"parameters": {"binary_data_output": True}}, {}):
        body, headers = binary_request({"x": x}, **head)
        answer = served.client.post("/v2/models/one/infer", content=body, headers=headers)
        found = results(answer)["y"]
        alone = [expected(folder, "one", x[n : n + 1]) for n in range(count)]
        assert np.array_equal(found, np.concatenate(alone))


def test_images_of_several_requests_are_computed_together(served: Running, folder: Path) -> None:
    """With the bits that each gets alone."""
    xs = [images(1 + n % 3) for n in range(12)]
    before = batches(served)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda x: results(served.infer("one", {"x": x})), xs))
    for x, answer in zip(xs, answers, strict=True):
        alone = [expected(folder, "one", x[n : n + 1]) for n in range(len(x))]
        assert np.array_equal(answer["y"], np.concatenate(alone))
    assert sum(len(x) for x in xs) == 24
    assert batches(served) - before <= 24


def batches(served: Running) -> int:
    """Batches of model `one` so far."""
    text = served.client.get("/metrics").text
    line = 'leanconv_batch_images_count{model="one",version="1"} '
    return int(float(text.split(line)[1].split("\n")[0])) if line in text else 0


def test_a_network_that_mixes_images_is_computed_request_by_request(
    served: Running, folder: Path
) -> None:
    for count in (1, 2, 3):
        x = images(count)
        found = results(served.infer("mixed", {"x": x}))["z"]
        assert np.array_equal(found, expected(folder, "mixed", x))
    model = served.service.models.found("mixed", None)
    assert not any(group.batched for _, group in model.plans.groups())


def test_shapes_that_are_new_are_planned(served: Running, folder: Path) -> None:
    model = served.service.models.found("wide", None)
    assert model.plans.groups() == []
    for width in (8, 9, 8):
        x = images(2, width)
        found = results(served.infer("wide", {"x": x}))["y"]
        alone = [expected(folder, "wide", x[n : n + 1]) for n in range(2)]
        assert np.array_equal(found, np.concatenate(alone))
    assert len(model.plans.groups()) == 2
    bad = served.infer("wide", {"x": images(1, 8)[:, :, :7]})
    assert bad.status_code == 400


def test_a_pruned_network(served: Running, folder: Path) -> None:
    x = RANDOM.standard_normal((3, 64, 28, 28)).astype(np.float32)
    alone = [expected(folder, "pruned", x[n : n + 1]) for n in range(3)]
    for count in (1, 3):
        body, headers = binary_request({"x": x[:count]})
        answer = served.client.post("/v2/models/pruned/infer", content=body, headers=headers)
        assert np.array_equal(results(answer)["y1"], np.concatenate(alone[:count]))


def test_versions(served: Running, folder: Path) -> None:
    assert served.client.get("/v2/models/fixed").json()["versions"] == ["2", "10"]
    x = images(2)
    assert served.infer("fixed/versions/2", {"x": x}).status_code == 200
    answer = served.infer("fixed", {"x": x[:1]})
    assert answer.json()["model_version"] == "10"
    assert served.infer("fixed", {"x": x}).status_code == 400


def test_metadata_and_health(served: Running) -> None:
    client = served.client
    assert client.get("/v2").json()["name"] == "leanconv"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/one/ready"):
        assert client.get(path).status_code == 200
    assert client.get("/v2/models/wide/versions/1").json() == {
        "name": "wide",
        "versions": ["1"],
        "platform": "onnx_leanconv",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4, 1, 1]}],
    }
    index = client.post("/v2/repository/index").json()
    assert ("fixed", "10", "READY") in [(r["name"], r["version"], r["state"]) for r in index]
    assert len(index) == 6


def test_metrics(served: Running) -> None:
    results(served.infer("one", {"x": images(1)}))
    text = served.client.get("/metrics").text
    assert 'leanconv_requests_total{model="one",status="200",version="1"}' in text
    assert "leanconv_request_bytes " in text
    assert "process_resident_memory_bytes" in text
    held = served.service.models.found("one", None).plans.held_bytes
    assert f'leanconv_plan_bytes{{model="one",version="1"}} {float(held)}' in text


def test_nan_goes_out_as_bytes_alone(served: Running) -> None:
    x = np.full((1, 3, 8, 8), np.inf, np.float32)
    body, headers = binary_request({"x": x})
    answer = served.client.post("/v2/models/one/infer", content=body, headers=headers)
    assert answer.status_code == 422
    assert "ask for binary data" in answer.json()["error"]
    body, headers = binary_request({"x": x}, parameters={"binary_data_output": True})
    answer = served.client.post("/v2/models/one/infer", content=body, headers=headers)
    assert not np.isfinite(results(answer)["y"]).all()


def test_a_client_of_triton(served: Running, folder: Path) -> None:
    http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    with http.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("one")
        assert client.get_server_metadata()["name"] == "leanconv"
        assert client.get_model_metadata("one")["inputs"][0]["datatype"] == "FP32"
        assert len(client.get_model_repository_index()) == 6
        x = images(3)
        for binary in (True, False):
            given = http.InferInput("x", x.shape, "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            wanted = [http.InferRequestedOutput("y", binary_data=binary)]
            found = client.infer("one", [given], outputs=wanted, request_id="7")
            alone = [expected(folder, "one", x[n : n + 1]) for n in range(3)]
            assert np.array_equal(found.as_numpy("y"), np.concatenate(alone))
            assert found.get_response()["id"] == "7"
        wrong = http.InferInput("x", [1], "INT8")
        wrong.set_data_from_numpy(np.zeros(1, np.int8))
        with pytest.raises(http.InferenceServerException, match="expected FP32"):
            client.infer("one", [wrong])
