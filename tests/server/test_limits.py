"""Bytes, counts and times that a server keeps to."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from leanconv.errors import BudgetError
from leanconv.server.batching import Job
from leanconv.server.connections import Exchange
from leanconv.server.limits import Limits
from leanconv.server.models import loaded, sources
from leanconv.server.plans import Plans
from support.hostile import node
from support.onnx_models import model as onnx_model
from support.served import LIMITS, binary_request, results, serving, small_net
from support.waiting import HANG_S, wait_until

X = np.ones((1, 3, 8, 8), np.float32)


class Gate(threading.Event):
    """What a computation waits for; `reached` says that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Networks compute nothing until the event is set."""
    event, usual = Gate(), Plans.run

    def run(self: Plans, *arguments: Any) -> Sequence[np.ndarray]:
        event.reached.set()
        assert event.wait(HANG_S)
        return usual(self, *arguments)

    monkeypatch.setattr(Plans, "run", run)
    return event


def test_requests_beyond_the_queue_are_refused(tmp_path: Path, held_back: Gate) -> None:
    limits = replace(LIMITS, queued=3)
    with serving([small_net(tmp_path / "one.onnx")], limits, batch=1) as served:
        with ThreadPoolExecutor(10) as threads:
            asked = [threads.submit(served.infer, "one", {"x": X})]
            assert held_back.reached.wait(HANG_S)
            asked += [threads.submit(served.infer, "one", {"x": X}) for _ in range(9)]
            wait_until(lambda: sum(each.done() for each in asked) >= 6)
            held_back.set()
        answers = [each.result() for each in asked]
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [503] * 6
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refused.headers["retry-after"] == "1"
        assert "wait already" in refused.json()["error"]


def test_requests_beyond_the_bytes_are_refused(tmp_path: Path, held_back: Gate) -> None:
    limits = replace(LIMITS, request_bytes=50_000)
    with serving([small_net(tmp_path / "one.onnx")], limits) as served:
        first = threading.Thread(target=served.infer, args=("one", {"x": X}))
        first.start()
        wait_until(lambda: served.service.waiting or served.service.requests.held)
        many = served.infer("one", {"x": np.ones((4, 3, 8, 8), np.float32)})
        held_back.set()
        first.join()
        assert many.status_code == 503
        assert "in flight" in many.json()["error"]
        assert many.headers["retry-after"] == "1"


def test_who_gives_up_leaves_the_queue(tmp_path: Path, held_back: Gate) -> None:
    """And takes its arrays along, while a batch is computed."""
    with serving([small_net(tmp_path / "one.onnx")], replace(LIMITS, request_s=1)) as served:
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(served.infer, "one", {"x": X}) for _ in range(4)]
        assert {each.result().status_code for each in asked} == {504}
        assert served.service.waiting == 0
        held_back.set()


def test_no_image_is_refused_before_its_shape_is_planned(tmp_path: Path) -> None:
    """A body without bytes would have a plan for a huge image."""
    with serving([small_net(tmp_path / "wide.onnx", width="W")]) as served:
        answer = served.infer("wide", {"x": np.ones((0, 3, 8, 2**20), np.float32)})
        assert answer.status_code == 400
        assert "no image" in answer.json()["error"]
        assert not next(iter(served.service.models)).plans.groups()


def test_results_for_which_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End their request, and not the thread."""

    def accept(*_: Any, **__: Any) -> None:
        raise MemoryError

    with serving([small_net(tmp_path / "one.onnx")]) as served:
        with monkeypatch.context() as patch:
            patch.setattr(Job, "accept", accept)
            assert served.infer("one", {"x": X}).status_code == 500
        assert results(served.infer("one", {"x": X}))


def test_results_are_counted_before_they_are_computed(tmp_path: Path) -> None:
    made = onnx_model([node("Concat", "x " * 64, "y", axis=1)], {"x": (1, 100)}, ["y"])
    file = tmp_path / "much.onnx"
    file.write_bytes(made.SerializeToString())
    for limit, status in ((20_000, 503), (500_000, 200)):
        with serving([str(file)], replace(LIMITS, request_bytes=limit)) as served:
            answer = served.infer("much", {"x": np.zeros((1, 100), np.float32)})
            assert answer.status_code == status, answer.text
            served.settled()
            if status == 503:
                assert "with its result" in answer.json()["error"]


def test_answers_of_much_json_are_refused(tmp_path: Path) -> None:
    """While it is written, nobody else is answered."""
    x = np.ones((2, 3, 8, 8), np.float32)
    with serving([small_net(tmp_path / "one.onnx")], replace(LIMITS, json_bytes=199)) as served:
        for count, head, status in (
            (1, {}, 200),  # 4 numbers of at most 25 bytes
            (2, {}, 422),
            (2, {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, 200),
        ):
            body, headers = binary_request({"x": x[:count]}, **head)
            answer = served.client.post("/v2/models/one/infer", content=body, headers=headers)
            assert answer.status_code == status, answer.text
            if status == 422:
                assert "ask for binary data" in answer.json()["error"]


def test_requests_for_which_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(*_: Any) -> None:
        raise MemoryError

    with serving([small_net(tmp_path / "one.onnx")]) as served:
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "body", body)
            answer = served.infer("one", {"x": X})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert results(served.infer("one", {"x": X}))


def test_a_batch_that_is_computed_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its arrays, results and plans, also where no other one follows."""
    jobs: list[weakref.ref[Job]] = []
    usual = Job.accept

    def accept(self: Job, *arguments: Any, **named: Any) -> None:
        jobs.append(weakref.ref(self))
        usual(self, *arguments, **named)

    monkeypatch.setattr(Job, "accept", accept)
    with serving([small_net(tmp_path / "one.onnx")]) as served:
        assert results(served.infer("one", {"x": X}))
        wait_until(lambda: gc.collect() >= 0 and jobs[0]() is None)


def test_lists_in_lists_are_counted(tmp_path: Path) -> None:
    """They take 44 bytes for each of JSON."""
    with serving(
        [small_net(tmp_path / "one.onnx")], replace(LIMITS, request_bytes=50_000)
    ) as served:
        answer = served.client.post("/v2/models/one/infer", content=b"[" * 600 + b"]" * 600)
        assert answer.status_code == 503
        assert "in flight" in answer.json()["error"]
        served.settled()


def test_a_result_that_does_not_come_in_time(tmp_path: Path, held_back: Gate) -> None:
    with serving([small_net(tmp_path / "one.onnx")], replace(LIMITS, request_s=1)) as served:
        answer = served.infer("one", {"x": X})
        held_back.set()
        assert answer.status_code == 504
        wait_until(lambda: served.infer("one", {"x": X}).status_code == 200)


def test_a_shape_that_is_not_planned_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, usual = threading.Event(), Plans.plan

    def plan(self: Plans, *arguments: Any, **named: Any) -> Any:
        assert event.wait(HANG_S)
        return usual(self, *arguments, **named)

    model = small_net(tmp_path / "wide.onnx", width="W")
    given = {"": [{"x": (1, 3, 8, 8)}]}
    limits = replace(LIMITS, plan_s=0, planning=2, groups=2)
    with serving([model], limits, shapes=given) as served:
        monkeypatch.setattr(Plans, "plan", plan)
        for width in (9, 10, 9):
            answer = served.infer("wide", {"x": np.ones((1, 3, 8, width), np.float32)})
            assert answer.status_code == 503
            assert "is being planned" in answer.json()["error"]
            assert int(answer.headers["retry-after"]) >= 1
        third = served.infer("wide", {"x": np.ones((1, 3, 8, 11), np.float32)})
        assert third.status_code == 503
        assert "2 shapes are being planned" in third.json()["error"]
        assert results(served.infer("wide", {"x": X}))  # others go on meanwhile

        def is_planned(width: int) -> bool:
            answer = served.infer("wide", {"x": np.ones((1, 3, 8, width), np.float32)})
            assert answer.status_code in (200, 503)
            return answer.status_code == 200

        event.set()
        for width in (9, 10, 11, 12):
            wait_until(partial(is_planned, width))
        plans = served.service.models.found("wide", None).plans
        widths = [group.smallest.inputs["x"].shape[3] for _, group in plans.groups()]
        assert widths == [8, 11, 12]  # the one of the start, and the two newest


def test_bytes_of_plans_are_bounded_before_they_load(tmp_path: Path) -> None:
    model = small_net(tmp_path / "one.onnx", batch=1)
    limits = replace(LIMITS, request_bytes=100_000)
    with pytest.raises(BudgetError, match=r"one\.onnx: .*memory_limit"):
        with serving([model], limits, memory_limit=101_000):
            pass
    with serving([model], limits, memory_limit=2_000_000) as served:
        held = served.service.models.found("one", None).plans.held_bytes
        assert 0 < held <= 1_900_000
    second = small_net(tmp_path / "two.onnx", batch=1)
    with pytest.raises(BudgetError, match=r"two\.onnx"):
        with serving([model, second], limits, memory_limit=100_000 + held + 5_000):
            pass


def test_the_limit_that_a_refusal_names_works(tmp_path: Path) -> None:
    """It counts what requests have; code is known once a plan fits, and is named then."""
    found = sources([small_net(tmp_path / "one.onnx", batch=1)])

    def refused(limit: int, share: int | None) -> str:
        requests = limit // share if share else 1000
        limits = replace(LIMITS, memory_bytes=limit, request_bytes=requests, request_share=share)
        try:
            loaded(found, {"threads": 1}, {}, replace(limits, batch=1), lambda _: None)
        except BudgetError as error:
            return str(error)
        return ""

    for share in (None, 4):
        said, limit = [refused(1024, share)], 1024
        while said[-1]:
            assert "of the server's limit; give memory_limit=" in said[-1]
            assert "stream_weights" not in said[-1]
            more = int(said[-1].partition("give memory_limit=")[2].split()[0])
            assert more > limit
            limit = more
            said.append(refused(limit, share))
        assert 2 <= len(said) <= 3


def test_a_new_shape_beyond_the_bytes_is_refused(tmp_path: Path) -> None:
    model = small_net(tmp_path / "wide.onnx", width="W")
    limits = replace(LIMITS, request_bytes=20_000_000)
    with serving([model], limits, memory_limit=20_700_000, batch=1) as served:
        assert results(served.infer("wide", {"x": X}))
        x = np.ones((1, 3, 8, 20_000), np.float32)
        body = x.tobytes()
        head = '{"inputs":[{"name":"x","shape":[1,3,8,20000],"datatype":"FP32","parameters":'
        head += f'{{"binary_data_size":{len(body)}}}}}]}}'
        answer = served.client.post(
            "/v2/models/wide/infer",
            content=head.encode() + body,
            headers={"Inference-Header-Content-Length": str(len(head))},
        )
        assert answer.status_code == 413, answer.text
        assert "--memory-limit" in answer.json()["error"]
        assert results(served.infer("wide", {"x": X}))


def test_new_shapes_may_be_refused(tmp_path: Path) -> None:
    model = small_net(tmp_path / "wide.onnx", width="W")
    given = {"wide": [{"": (1, 3, 8, 8)}]}
    with serving([model], replace(LIMITS, groups=0), shapes=given, batch=2) as served:
        assert results(served.infer("wide", {"x": np.concatenate([X, X, X])}))
        answer = served.infer("wide", {"x": np.ones((1, 3, 8, 9), np.float32)})
        assert answer.status_code == 400
        assert "expected x [1, 3, 8, 8]" in answer.json()["error"]


def test_a_given_shape_of_images_that_are_mixed(tmp_path: Path) -> None:
    """It is planned at the start, for all of its images together."""
    model = small_net(tmp_path / "mixed.onnx", mixes=True)
    given = {"": [{"": (3, 3, 8, 8)}]}
    with serving([model], replace(LIMITS, groups=0), shapes=given) as served:
        assert results(served.infer("mixed", {"x": np.concatenate([X, X, X])}))


def test_values_that_decide_what_is_computed(tmp_path: Path) -> None:
    """Each has a plan of its own, and the requests of one are not computed with those of others."""
    made = onnx_model([node("Expand", "x n", "y")], {"x": (1, 3)}, ["y"])
    shape = helper.make_tensor_value_info("n", TensorProto.INT64, [2])
    made.graph.input.append(shape)
    file = tmp_path / "expand.onnx"
    file.write_bytes(made.SerializeToString())
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    with serving([str(file)]) as served:
        for count in (2, 4, 2):
            found = results(served.infer("expand", {"x": x, "n": np.array([count, 3])}))
            assert np.array_equal(found["y"], np.repeat(x, count, 0))
        assert len(served.service.models.found("expand", None).plans.groups()) == 2
        assert served.infer("expand", {"x": x, "n": np.array([2, 4])}).status_code == 400
        assert served.infer("expand", {"x": x, "n": np.array([2**40, 3])}).status_code in (400, 413)


def test_limits_are_documented() -> None:
    for field in fields(Limits):
        assert f"    {field.name}: " in (Limits.__doc__ or "")
