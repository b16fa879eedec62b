"""Requests that are malformed, too large, slow or aborted: the right status, and nothing stays."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from leanconv.server.models import ServedModel
from support.served import LIMITS, Running, binary_request, results, serving, small_net
from support.waiting import HANG_S, wait_until

X = np.ones((1, 3, 8, 8), np.float32)
INFER = "/v2/models/one/infer"
TENSOR: dict[str, Any] = {"name": "x", "shape": [1, 3, 8, 8], "datatype": "FP32"}
DATA = [1.0] * 192


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = small_net(tmp_path_factory.mktemp("models") / "one.onnx")
    limits = replace(LIMITS, body_bytes=100_000, json_bytes=50_000)
    with serving([model], limits) as made:
        yield made


def with_tensor(**changes: Any) -> bytes:
    tensor = {k: v for k, v in {**TENSOR, "data": DATA, **changes}.items() if v is not ...}
    return json.dumps({"inputs": [tensor]}).encode()


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no JSON"),
    "no JSON": (b"{", "no JSON"),
    "no UTF-8": (b"\xff\xfe\x00", "no JSON"),
    "another coding": ('{"inputs": []}'.encode("utf-16"), "no JSON"),
    "nested without end": (b"[" * 40_000, "no JSON"),
    "an endless number": (b'{"inputs": ' + b"9" * 40_000 + b"}", "no JSON"),
    "a list": (b"[]", "expected a JSON object"),
    "no inputs": (b"{}", "inputs None; expected a list"),
    "inputs of text": (b'{"inputs": "x"}', "expected a list"),
    "an input of text": (b'{"inputs": ["x"]}', "expected a JSON object"),
    "no input": (b'{"inputs": []}', "no input 'x'"),
    "two inputs": (b'{"inputs": [{}, {}]}', "2 inputs; expected a list of at most 1"),
    "another name": (with_tensor(name="z"), "input 'z'; expected each once of 'x'"),
    "a name that is none": (with_tensor(name={"a": 1}), "expected each once of 'x'"),
    "another type": (with_tensor(datatype="FP64"), "datatype 'FP64'; expected FP32"),
    "no type": (with_tensor(datatype=...), "datatype None"),
    "no shape": (with_tensor(shape=...), "shape None; expected a list of extents"),
    "a shape of text": (with_tensor(shape="1x3"), "expected a list of extents"),
    "a shape of texts": (with_tensor(shape=["1"]), "expected a list of extents"),
    "a shape of booleans": (with_tensor(shape=[True, 3, 8, 8]), "expected a list of extents"),
    "a negative shape": (with_tensor(shape=[-1, 3, 8, 8]), "expected a list of extents"),
    "an endless shape": (with_tensor(shape=[10**30, 3, 8, 8]), "expected a list of extents"),
    "many axes": (with_tensor(shape=[1] * 1000), "expected a list of extents"),
    "another shape": (with_tensor(shape=[1, 4, 8, 6]), "expected [-1, 3, 8, 8]"),
    "no images": (with_tensor(shape=[0, 3, 8, 8], data=[]), "at least 1"),
    "no images, beyond NumPy": (with_tensor(shape=[0, *[2**39] * 3], data=[]), "fewer elements"),
    "fewer numbers": (with_tensor(data=DATA[:-1]), "of shape [191]"),
    "more numbers": (with_tensor(data=[*DATA, 1.0]), "of shape [193]"),
    "ragged": (with_tensor(data=[[1.0, 2.0], [3.0]]), "unequal lengths"),
    "mixed depths": (with_tensor(data=[1.0, [2.0]]), "other elements"),
    "texts": (with_tensor(data=["1"] * 192), "other elements"),
    "a long text": (with_tensor(data=["a" * 30_000, *[""] * 191]), "other elements"),
    "booleans": (with_tensor(data=[True] * 192), "other elements"),
    "nulls": (with_tensor(data=[None] * 192), "other elements"),
    "a large integer": (with_tensor(data=[10**400] * 192)[:40_000], "no JSON"),
    "too large an integer": (with_tensor(data=[10**400, *DATA[1:]]), "beyond float64"),
    "deep": (with_tensor(data=json.loads("[" * 40 + "]" * 40)), "too deep"),
    "data of text": (with_tensor(data="1 2 3"), "expected a list of numbers"),
    "neither": (with_tensor(data=...), "either data or the parameter"),
    "both": (with_tensor(parameters={"binary_data_size": 768}), "either data or the parameter"),
    "raw bytes that are not there": (
        with_tensor(data=..., parameters={"binary_data_size": 768}),
        "0 bytes are left",
    ),
    "a size of text": (
        with_tensor(data=..., parameters={"binary_data_size": "768"}),
        "expected a number of bytes",
    ),
    "a negative size": (
        with_tensor(data=..., parameters={"binary_data_size": -1}),
        "expected a number of bytes",
    ),
    "shared memory": (with_tensor(parameters={"shared_memory_region": "a"}), "does not offer"),
    "parameters of text": (with_tensor(parameters="a"), "expected a JSON object"),
    "an id that is none": (
        json.dumps({"inputs": [{**TENSOR, "data": DATA}], "id": 5}).encode(),
        "expected text",
    ),
    "another output": (
        json.dumps({"inputs": [{**TENSOR, "data": DATA}], "outputs": [{"name": "q"}]}).encode(),
        "output 'q'; expected each once of 'y'",
    ),
    "a flag of text": (
        json.dumps(
            {"inputs": [{**TENSOR, "data": DATA}], "parameters": {"binary_data_output": "yes"}}
        ).encode(),
        "expected true or false",
    ),
}


def still_answers(served: Running) -> None:
    assert np.isfinite(results(served.infer("one", {"x": X}))["y"]).all()
    served.settled()
    assert served.service.waiting == 0
    assert all(model.expected == 0 for model in served.service.models)


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed(served: Running, kind: str) -> None:
    body, message = MALFORMED[kind]
    answer = served.client.post(INFER, content=body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]
    still_answers(served)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"Inference-Header-Content-Length": "x"}, 400),
        ({"Inference-Header-Content-Length": "-1"}, 400),
        ({"Inference-Header-Content-Length": "99999999"}, 400),
        ({"Inference-Header-Content-Length": "5"}, 400),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Host": "evil.example"}, 400),
        ({"Origin": "https://evil.example"}, 400),
        ({"Origin": "null"}, 400),
        ({"Origin": "http://localhost:3000"}, 200),
    ],
)
def test_wrong_headers(served: Running, given: dict[str, str], status: int) -> None:
    body, headers = binary_request({"x": X})
    answer = served.client.post(INFER, content=body, headers={**headers, **given})
    assert answer.status_code == status, answer.text
    still_answers(served)


def test_raw_bytes_that_are_too_many_or_too_few(served: Running) -> None:
    body, headers = binary_request({"x": X})
    for changed in (body + b"\0", body[:-1]):
        answer = served.client.post(INFER, content=changed, headers=headers)
        assert answer.status_code == 400, answer.text
    still_answers(served)


def test_too_large(served: Running) -> None:
    assert served.client.post(INFER, content=b"0" * 100_001).status_code == 413
    assert served.client.post(INFER, content=b"0" * 50_001).status_code == 413  # of JSON
    answer = served.client.post(INFER, content=b"0" * 3_000_000)  # more than sockets hold
    assert answer.status_code == 413
    assert "--max-body" in answer.json()["error"]
    claimed = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**15}\r\n\r\n"
    assert b"413" in served.raw(claimed.encode())
    still_answers(served)


def test_bodies_of_unknown_length(served: Running) -> None:
    answer = served.client.post(INFER, content=iter([b"{}", b"{}"]))
    assert answer.status_code == 411
    both = HEAD + "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert b" 411 " in served.raw(both.encode())
    still_answers(served)


def test_what_is_not_there(served: Running) -> None:
    client = served.client
    for path in ("/v2/models/two", "/v2/models/one/versions/3", "/v2/models/one/versions/x"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "there is no model" in answer.text or "has no version" in answer.text
    assert client.post("/v2/models/two/infer", content=b"{}").status_code == 404
    assert client.get("/nothing").status_code == 404
    assert client.get(INFER).status_code == 405
    assert client.get("/v2/models/..%2f..%2fetc%2fpasswd").status_code == 404
    still_answers(served)


HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n"


def test_no_http(served: Running) -> None:
    for data in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\r\n" * 999):
        answer = served.raw(data)
        assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert b" 400 " in served.raw(HEAD.encode() + b"A: " + b"x" * 100_000)
    twice = HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n"
    assert b" 400 " in served.raw(twice.encode())
    still_answers(served)


def test_slow_headers_are_cut(served: Running) -> None:
    """Not before their time has passed, though each byte comes soon after the one before."""
    for begin in (b"", b"POST ", HEAD.encode()):
        start = time.monotonic()
        with socket.create_connection(("127.0.0.1", served.port), timeout=0.1) as made:
            made.sendall(begin)
            assert any(_is_cut(made, b"A" if begin else b"") for _ in range(100))
        assert time.monotonic() - start > 0.9 * LIMITS.header_s
    still_answers(served)


def _is_cut(made: socket.socket, more: bytes) -> bool:
    try:
        made.sendall(more)
        return not made.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_slow_bodies_are_answered(tmp_path: Path) -> None:
    with serving([small_net(tmp_path / "one.onnx")], replace(LIMITS, request_s=1)) as served:
        answer = served.raw(HEAD.encode() + b"Content-Length: 1000\r\n\r\n{")
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"connection: close" in answer.lower()
        served.settled()
        assert served.client.get("/v2/health/ready").status_code == 200


def test_who_never_reads_is_cut(served: Running) -> None:
    """Many answers to one connection that reads none: no memory of the server holds them."""
    served.client.close()
    served.client = httpx.Client(base_url=served.url, timeout=HANG_S)
    with socket.create_connection(("127.0.0.1", served.port), timeout=0.5) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(100):
                made.sendall(request * 1000)
        wait_until(lambda: not served.server.server_state.connections)
    still_answers(served)


def test_aborted_requests_leave_nothing(served: Running) -> None:
    body, headers = binary_request({"x": np.ones((20, 3, 8, 8), np.float32)})
    head = HEAD + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    whole = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    for end in (10, len(head), len(head) + 30, len(whole) // 2, len(whole) - 1, len(whole)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", served.port)) as made:
                made.sendall(whole[:end])
    still_answers(served)


def test_mutated_requests(served: Running) -> None:
    """Hundreds of damaged ones: no answer says that the server failed, and it goes on."""
    random = np.random.default_rng(7)
    body, headers = binary_request({"x": X})
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    raw = (HEAD + lines).encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    text = with_tensor()
    plain = HEAD.encode() + f"Content-Length: {len(text)}\r\n\r\n".encode() + text
    for number in range(300):
        damaged = bytearray((raw, plain)[number % 2])
        most = len(damaged) if number % 3 else len(damaged) - (len(body), len(text))[number % 2]
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(0, min(most, len(damaged))))
            kind = random.integers(0, 4)
            if kind == 0:
                damaged[at] = int(random.integers(0, 256))
            elif kind == 1:
                del damaged[at : at + int(random.integers(1, 50))]
            elif kind == 2:
                damaged[at:at] = random.bytes(int(random.integers(1, 50)))
            else:
                damaged[at:at] = damaged[at : at + 100]
        with socket.create_connection(("127.0.0.1", served.port), timeout=0.2) as made:
            with contextlib.suppress(ConnectionError, TimeoutError):
                made.sendall(damaged + bytes(150))  # what was deleted, and no HTTP behind it
                answer = made.recv(65536)
                assert b" 500 " not in answer.split(b"\r\n")[0], answer
    still_answers(served)
    assert 'status="500"' not in served.client.get("/metrics").text


NULLED = {
    "id": {"id": None},
    "parameters": {"parameters": None},
    "outputs": {"outputs": None},
    "binary_data_output": {"parameters": {"binary_data_output": None}},
    "parameters of an output": {"outputs": [{"name": "y", "parameters": None}]},
    "binary_data": {"outputs": [{"name": "y", "parameters": {"binary_data": None}}]},
    "what is not offered": {
        "outputs": [{"name": "y", "parameters": {"classification": None}}],
    },
    "a member that is not known": {"timeout": None},
}


@pytest.mark.parametrize("name", NULLED)
def test_null_is_as_if_it_were_not_there(served: Running, name: str) -> None:
    whole = {"inputs": [{**TENSOR, "data": DATA}], **NULLED[name]}
    answer = served.client.post(INFER, json=whole)
    assert np.array_equal(results(answer)["y"], results(served.infer("one", {"x": X}))["y"])
    assert "id" not in answer.json()


@pytest.mark.parametrize(
    "parameters", [None, {"binary_data_size": None}, {"shared_memory_region": None}]
)
def test_null_parameters_of_an_input(served: Running, parameters: Any) -> None:
    answer = served.client.post(INFER, content=with_tensor(parameters=parameters))
    assert results(answer)
    body, headers = binary_request({"x": X}, id=None, outputs=None, parameters=None)
    assert results(served.client.post(INFER, content=body, headers=headers))
    for missing in ("name", "shape", "datatype", "data"):
        answer = served.client.post(INFER, content=with_tensor(**{missing: None}))
        assert answer.status_code == 400
        assert "; expected " in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/v2/models/one/config", 404, "POST /v2/models/{name}/infer"),
        ("GET", "/v2/models/one/stats", 404, "GET /v2/models/{name}"),
        ("POST", "/v2/repository/models/one/load", 404, "POST /v2/repository/index"),
        ("GET", "/favicon.ico", 404, "GET /metrics"),
        ("GET", "/v2/models/one/infer", 405, "POST there"),
        ("GET", "/v2/repository/index", 405, "POST there"),
        ("DELETE", "/v2/models/one", 405, "GET or HEAD there"),
        ("POST", "/", 405, "GET or HEAD there"),
        ("GET", "/v2/models/two", 404, "there are one"),
        ("GET", "/plans/one/1/9", 404, "there are"),
        ("GET", "/v2/models/one/versions/x", 404, "it has 1"),
    ],
)
def test_what_is_not_offered(
    served: Running, method: str, path: str, status: int, expected: str
) -> None:
    answer = served.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    assert expected in answer.json()["error"]
    assert ("allow" in answer.headers) == (status == 405)


def test_other_refusals_are_json(
    tmp_path: Path, served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No HTTP, a defect, too many connections."""
    head, _, body = served.raw(b"no HTTP\r\n\r\n").partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert b"application/json" in head
    assert json.loads(body)["error"]
    with serving([small_net(tmp_path / "two.onnx")], replace(LIMITS, connections=2)) as crowded:
        with monkeypatch.context() as patch:
            patch.setattr(ServedModel, "metadata", lambda *_: 1 / 0)
            answer = crowded.client.get("/v2/models/two")
        assert answer.status_code == 500
        assert answer.headers["connection"] == "close"
        assert "ZeroDivisionError" in answer.json()["error"]
        with socket.create_connection(("127.0.0.1", crowded.port)):
            wait_until(lambda: crowded.client.get("/v2").status_code != 200)
            answer = crowded.client.get("/v2")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "connections are open" in answer.json()["error"]
        wait_until(lambda: crowded.client.get("/v2").status_code == 200)


@pytest.mark.parametrize("headers", [{}, {"Inference-Header-Content-Length": "0"}])
def test_raw_bytes_alone(served: Running, headers: dict[str, str]) -> None:
    for body in (X.tobytes(), b"\x89PNG\r\n"):
        answer = served.client.post(INFER, content=body, headers=headers)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "raw tensors come behind it" in error
        assert "inference-header-content-length" in error
