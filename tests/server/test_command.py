"""`leanconv serve` as a process: it says where it listens, and SIGTERM ends it well."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import httpx
import numpy as np
import pytest

from leanconv import server
from leanconv.cli.main import main
from leanconv.errors import MissingExtraError
from leanconv.server.connections import listening
from leanconv.server.limits import Limits
from leanconv.server.models import loaded, sources
from support.served import binary_request, results, small_net
from support.small_inputs import IMAGE, by_rate
from support.waiting import HANG_S, wait_until

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line that ends before it serves: its exit code, what it says."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["serve", *arguments])
        return code, capsys.readouterr().err

    return run


def not_taken(port: int) -> bool:
    with socket.socket() as made:
        return made.connect_ex(("127.0.0.1", port)) != 0


def test_the_life_of_a_server(tmp_path: Path) -> None:
    """Requests in flight are answered after SIGTERM, new ones are not taken, the exit code is 0."""
    model = small_net(tmp_path / "models" / "one" / "4" / "model.onnx")
    command = [sys.executable, "-m", "leanconv", "serve", str(tmp_path / "models"), "--port", "0"]
    command += ["--memory-limit", "64MiB", "--threads", "1", "--max-batch", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while "serving on" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "one version 4: x 1x3x8x8 in batches of 1, 2" in said
        found = re.search(r"serving on (http://127\.0\.0\.1:\d+)", said)
        assert found, said
        x = np.ones((1, 3, 8, 8), np.float32)
        body, headers = binary_request({"x": x})
        with httpx.Client(base_url=found[1]) as client:
            assert results(client.post("/v2/models/one/infer", content=body, headers=headers))
        port = int(found[1].rpartition(":")[2])
        late = HTTPConnection("127.0.0.1", port)
        late.putrequest("POST", "/v2/models/one/infer")
        given = {**headers, "Content-Length": str(len(body)), "Expect": "100-continue"}
        for each in given.items():
            late.putheader(*each)
        late.endheaders()
        assert late.sock.recv(1000).startswith(b"HTTP/1.1 100 ")  # the server has it, and waits
        late.send(body[:100])
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not_taken(port))
        late.send(body[100:])
        answer = late.getresponse()
        told = answer.getheaders()
        assert results(httpx.Response(answer.status, headers=told, content=answer.read()))
        late.close()
        assert process.wait(HANG_S) == 0
        assert not_taken(port)
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
    assert Path(model).exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "required: MODEL"),
        ("x.onnx --max-delay 2", "no time; expected text such as '2ms'"),
        ("x.onnx --max-delay 2h", "no time; expected text such as '2ms'"),
        ("x.onnx --max-batch 0", "at least 1"),
        ("x.onnx --max-batch 1025", "--max-batch is 1025; expected an integer from 1 to 1024"),
        ("x.onnx --port 70000", "'70000' is not a number from 0 to 65535"),
        ("x.onnx --memory-limit 1000 --request-memory 1000", "leaves nothing"),
        ("x.onnx --shape a:b", "is no shape"),
        ("missing.onnx", "leanconv: the model 'missing.onnx' cannot be read"),
    ],
)
def test_wrong_command_lines(call: Call, given: str, message: str) -> None:
    code, said = call(*given.split())
    assert code in (1, 2)
    assert message in said


def test_a_shape_of_no_model(call: Call, tmp_path: Path) -> None:
    model = small_net(tmp_path / "one.onnx")
    code, said = call(model, "--threads", "1", "--shape", "two:1x3x8x8")
    assert code == 1
    assert "--shape names the model 'two'; expected one of one" in said
    code, said = call(model, "--threads", "1", "--shape", "1x3x8x9")
    assert code == 1
    assert "does not fit input 'x'" in said


def test_a_value_that_decides_what_is_planned_before_requests_come(
    call: Call, tmp_path: Path
) -> None:
    model = tmp_path / "one.onnx"
    model.write_bytes(by_rate().SerializeToString())
    shapes: dict[str, list[dict[str, tuple[int, ...]]]] = {"": [{"x": IMAGE.shape}]}
    said: list[str] = []
    for values in ({}, {"one": {"rate": (16000,)}}):
        loaded(sources([str(model)]), {"threads": 1}, shapes, Limits(), said.append, values)
    assert "as requests bring them" in said[0]
    assert "x 1x3x6x5" in said[1]
    other = small_net(tmp_path / "other.onnx")  # without such an input
    every = {"": {"rate": (16000,)}}
    loaded(sources([other]), {"threads": 1}, {}, Limits(), said.append, every)
    code, refused = call(str(model), "--threads", "1", "--value", "two:rate=16000")
    assert code == 1
    assert "--value names the model 'two'; expected one of one" in refused


def test_an_address_that_cannot_be_had(call: Call, tmp_path: Path) -> None:
    model = small_net(tmp_path / "one.onnx", batch=1)
    with listening("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        code, said = call(model, "--threads", "1", "--port", port)
    assert code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: " in said
    assert "give another --port" in said


def test_a_missing_extra_says_what_to_install(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PACKAGES", ("starlette", "no_such_package"))
    with pytest.raises(
        MissingExtraError, match=r"is not installed: pip install 'leanconv\[server\]'"
    ):
        server.require()
    monkeypatch.setattr(server, "PACKAGES", ("no_such_package", "nor_this"))
    with pytest.raises(MissingExtraError, match="no_such_package, nor_this, which are not"):
        server.require()
    code, said = call("x.onnx")
    assert code == 1
    assert "no_such_package" in said
