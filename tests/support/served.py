"""A server in this process, on a thread of its own, and requests by bare sockets and httpx."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from leanconv.server.app import application
from leanconv.server.connections import listening, server
from leanconv.server.limits import Limits
from leanconv.server.models import Models, loaded, sources
from leanconv.server.service import Service
from support.waiting import HANG_S, wait_until

LIMITS = replace(Limits(), header_s=1, write_s=2, request_s=30, plan_s=60)


class Running:
    """A server that runs, and a client of it."""

    def __init__(self, service: Service, port: int, server: Any) -> None:
        self.service, self.port, self.server = service, port, server
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=HANG_S)

    def infer(self, name: str, inputs: Mapping[str, np.ndarray], **head: Any) -> httpx.Response:
        """A request with numbers in JSON."""
        tensors = [
            {"name": n, "shape": x.shape, "datatype": _NAMES[x.dtype.name], "data": x.tolist()}
            for n, x in inputs.items()
        ]
        return self.client.post(f"/v2/models/{name}/infer", json={"inputs": tensors, **head})

    def settled(self) -> None:
        """All bytes are given back; those of an answer are, soon after its client has it."""
        wait_until(lambda: not self.service.requests.held)

    def raw(self, data: bytes) -> bytes:
        """What the server says to bytes, until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S) as made:
            made.sendall(data)
            parts = []
            with suppress(ConnectionError):
                while part := made.recv(65536):
                    parts.append(part)
            return b"".join(parts)


_NAMES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "uint8": "UINT8", "bool": "BOOL"}


def binary_request(inputs: Mapping[str, np.ndarray], **head: Any) -> tuple[bytes, dict[str, str]]:
    """A body with raw tensors, and its headers."""
    tensors = [
        {
            "name": n,
            "shape": x.shape,
            "datatype": _NAMES[x.dtype.name],
            "parameters": {"binary_data_size": x.nbytes},
        }
        for n, x in inputs.items()
    ]
    text = json.dumps({"inputs": tensors, **head}).encode()
    body = b"".join([text, *(x.tobytes() for x in inputs.values())])
    return body, {"Inference-Header-Content-Length": str(len(text))}


def results(answer: httpx.Response) -> dict[str, np.ndarray]:
    """The outputs of an answer, in JSON or raw."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("Inference-Header-Content-Length")
    head = json.loads(answer.content[: int(length)] if length else answer.content)
    rest = answer.content[int(length) :] if length else b""
    kinds = {name: kind for kind, name in _NAMES.items()}
    found = {}
    for tensor in head["outputs"]:
        size = tensor.get("parameters", {}).get("binary_data_size")
        kind = kinds[tensor["datatype"]]
        if size is None:
            array = np.array(tensor["data"], kind)
        else:
            array, rest = np.frombuffer(rest[:size], kind), rest[size:]
        found[tensor["name"]] = array.reshape(tensor["shape"])
    assert not rest
    return found


@contextmanager
def serving(
    models: Sequence[str],
    limits: Limits = LIMITS,
    memory_limit: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    batch: int = 4,
) -> Iterator[Running]:
    """Serve models while the block runs."""
    limits = replace(limits, memory_bytes=memory_limit, batch=batch)
    said: list[str] = []
    ready = loaded(sources(models), {"threads": 1}, shapes or {}, limits, said.append)
    with running(ready, limits) as made:
        yield made


@contextmanager
def running(models: Models, limits: Limits) -> Iterator[Running]:
    """Serve models that are loaded."""
    service = Service(models, limits)
    bound = listening("127.0.0.1", 0)
    made = server(application(service, local=True), limits)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [bound]})
    thread.start()
    found = Running(service, bound.getsockname()[1], made)
    try:
        yield found
    finally:
        found.client.close()
        made.should_exit = True
        thread.join(HANG_S)
        assert not thread.is_alive(), "the server does not stop"


def small_net(path: Path, batch: int | str = "N", width: int | str = 8, mixes: bool = False) -> str:
    """A convolution with ReLU and a mean over space, and over images if it is to mix them."""
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceMean", ["b", "axes"], ["y"], keepdims=1),
    ]
    if mixes:
        nodes += [
            helper.make_node("ReduceMean", ["y", "zero"], ["m"], keepdims=1),
            helper.make_node("Sub", ["y", "m"], ["z"]),
        ]
    last = "z" if mixes else "y"
    shape = [batch, 3, 8, width]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, 4, 1, 1])],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(np.array([2, 3]), "axes"),
            numpy_helper.from_array(np.array([0]), "zero"),
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return str(path)
