"""Servers that start from snapshots: their answers, bytes and pages are those of planned ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leanconv.api import snapshots
from leanconv.api.planned_call import PlannedCall
from leanconv.api.snapshots import SnapshotCall
from leanconv.errors import BudgetError
from leanconv.planner.lowered_graph import ConstantPool
from leanconv.server.limits import Limits
from leanconv.server.models import Models, loaded, sources
from leanconv.server.plans import Group, Plans
from leanconv.settings import Settings
from support.cache_check import run_program
from support.served import LIMITS, results, running, small_net

pytestmark = pytest.mark.once  # any plan will do
X = np.random.default_rng(3).standard_normal((7, 3, 8, 8)).astype(np.float32)
WIDE = {"": [{"x": (1, 3, 8, 8)}]}  # what is planned at the start of a network of any width


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Snapshots are kept in a folder of the test's."""
    settings = Settings(cache_dir=tmp_path / "cache")
    monkeypatch.setattr(snapshots, "current_settings", lambda: settings)
    return settings.cache_dir / "snapshots"


def limited(memory_limit: int | None) -> Limits:
    return replace(LIMITS, memory_bytes=memory_limit, request_bytes=2**20, batch=4)


def started(
    *files: str,
    memory_limit: int | None = 2**26,
    shapes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Models:
    """The models of a server when it begins to listen."""
    options = {"threads": 1}
    return loaded(sources(files), options, shapes or {}, limited(memory_limit), lambda _: None)


def plans(models: Models) -> Plans:
    """Those of the only model."""
    (model,) = models
    return model.plans


def kinds(models: Models) -> list[type]:
    """How each model was made ready, each batch in the same way."""
    found = []
    for model in models:
        groups = (group for _, group in model.plans.groups())
        (kind,) = {type(plan) for group in groups for plan in group.plans.values()}
        found.append(kind)
    return found


def of_width(models: Models, width: int, limit: int | None = None) -> Group:
    """The plans of a request of another width, from now on."""
    found = plans(models)
    return found.plan(found.wanted([np.ones((1, 3, 8, width), np.float32)]), limit)


@pytest.mark.parametrize("memory_limit", [None, 2**26])
def test_a_second_server_says_what_the_first_one_says(
    tmp_path: Path, memory_limit: int | None
) -> None:
    model = small_net(tmp_path / "one.onnx")
    said = []
    for kind in (PlannedCall, SnapshotCall):
        models = started(model, memory_limit=memory_limit)
        assert kinds(models) == [kind]
        (group,) = (group for _, group in plans(models).groups())
        assert group.sizes == (1, 2, 4)
        assert all(each.memory_bytes == each.used_bytes for each in group.plans.values())
        with running(models, limited(memory_limit)) as made:
            answers = [results(made.infer("one", {"x": X[:n]}))["y"].tobytes() for n in (7, 4, 1)]
            page, plan = (made.client.get(at) for at in ("/", "/plans/one/1/0"))
            assert (page.status_code, plan.status_code) == (200, 200)
            assert "batches of 1, 2, 4" in page.text
            about = made.client.get("/v2/models/one").json()
            metrics = made.client.get("/metrics").text
            assert 'leanconv_planned_shapes{model="one",version="1"} 1.0' in metrics
            assert kinds(models) == [kind]  # with a page, too
        said.append((answers, plan.text, about, [p.memory_bytes for p in group.plans.values()]))
    assert said[0] == said[1]


def test_what_plans_is_imported_by_the_first_page_that_needs_it(tmp_path: Path) -> None:
    model = small_net(tmp_path / "one.onnx")
    program = f"""
import asyncio, sys
import numpy as np
from leanconv.server.app import Pages
from leanconv.server.limits import Limits
from leanconv.server.models import loaded, sources
from leanconv.server.service import Service
late = ("algorithms", "graph.passes", "graph.convert", "kernels", "operators", "planner",
        "graph.onnx_import")
def planner():
    return [n for n in sys.modules if n.partition(".")[2].startswith(late)] != []
limits = Limits()
service = Service(loaded(sources([{model!r}]), {{"threads": 1}}, {{}}, limits, print), limits)
(model,) = service.models
(_, group), = model.plans.groups()
answer = model.plans.run(group, 1, [np.ones((1, 3, 8, 8), np.float32)])[0]
print(planner(), answer.tobytes().hex())
"""
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path / "c"), "LEANCONV_SNAPSHOT_CACHE_BYTES": "1GiB"}
    first, second = (run_program(program, **settings).stdout.splitlines() for _ in range(2))
    assert first[-1].split()[0] == "True"
    assert second[-1] == f"False {first[-1].split()[1]}"


def test_a_new_shape_shares_weights_and_arena_with_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned beside them packs no weights again, and counts as it does without them."""
    model = small_net(tmp_path / "wide.onnx", width="W")
    first = started(model, shapes=WIDE)
    before = of_width(first, 2000)
    second = started(model, shapes=WIDE)
    monkeypatch.setattr(snapshots.Snapshots, "compiled", lambda *_: None)  # of no other shape
    left = []
    offered = ConstantPool.offered
    monkeypatch.setattr(
        ConstantPool, "offered", lambda pool, *given: left.extend(pool.packings) or offered(pool)
    )
    after = of_width(second, 2000)
    assert not left
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 2000)).astype(np.float32)
    for size, plan in after.plans.items():
        assert type(plan) is PlannedCall
        assert plan.memory_bytes == plan.used_bytes == before.plans[size].memory_bytes
        assert plan.run([x[:size]])[0].tobytes() == before.plans[size].run([x[:size]])[0].tobytes()
    assert plans(second).held_bytes <= plans(first).held_bytes


def test_a_limit_that_serves_planned_networks_serves_snapshots(tmp_path: Path) -> None:
    model = small_net(tmp_path / "wide.onnx", width="W")
    shapes = {"": [*WIDE[""], {"x": (1, 3, 8, 4000)}]}
    limit = plans(started(model, shapes=shapes, memory_limit=None)).held_bytes
    server = limited(None).memory_for(limit + 100_000)
    for kind in (PlannedCall, SnapshotCall):
        assert kinds(started(model, shapes=shapes, memory_limit=server)) == [kind]
    for _ in range(2):  # planned, and from what was planned
        with pytest.raises(BudgetError, match="give memory_limit="):
            started(model, shapes=shapes, memory_limit=2**20 + 2**10)


def test_another_limit_is_no_snapshots(tmp_path: Path) -> None:
    """Beside models that need more than at the start, plans follow from what these leave."""
    model = small_net(tmp_path / "wide.onnx", width="W")
    first = started(model, shapes=WIDE)
    of_width(first, 9, limited(2**26).plan_bytes)
    second = started(model, shapes=WIDE)
    assert type(of_width(second, 9, limited(2**26).plan_bytes).smallest) is SnapshotCall
    assert type(of_width(second, 9, 2**20).smallest) is PlannedCall
    with pytest.raises(BudgetError, match="the limit is 200"):
        of_width(started(model, shapes=WIDE), 9, 200)


def test_several_models_within_a_limit(tmp_path: Path) -> None:
    """What one leaves to the next differs with its code: by the third start all are kept."""
    files = [small_net(tmp_path / f"{name}.onnx") for name in ("one", "two")]
    answers = []
    for expected in ([PlannedCall] * 2, None, [SnapshotCall] * 2):
        models = started(*files)
        assert expected is None or kinds(models) == expected
        with running(models, limited(2**26)) as made:
            found = [results(made.infer(name, {"x": X}))["y"].tobytes() for name in ("one", "two")]
            assert made.client.get("/plans/two/1/0").status_code == 200
        answers.append(found)
    assert answers[0] == answers[1] == answers[2]


def test_a_damaged_snapshot_is_a_miss(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_net(tmp_path / "one.onnx")
    expected = [plan.run([X[:1]])[0] for plan in [plans(started(model)).groups()[0][1].smallest]]
    for file in sorted(folder.glob("*-*.snapshot"))[:1]:
        whole = file.read_bytes()
        file.write_bytes(whole[:-70] + bytes(byte ^ 1 for byte in whole[-70:]))
    models = started(model)
    assert "is damaged" in caplog.text
    ((_, group),) = plans(models).groups()
    assert PlannedCall in map(type, group.plans.values())
    assert group.sizes == (1, 2, 4)
    assert group.smallest.run([X[:1]])[0].tobytes() == expected[0].tobytes()
    assert kinds(started(model)) == [SnapshotCall]  # it was made anew


def test_a_file_that_was_written_to_has_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are answered: what runs is in memory."""
    monkeypatch.setattr(snapshots, "_MOST_READ", 1)  # files of any size are mapped
    model = Path(small_net(tmp_path / "one.onnx"))
    started(str(model))
    models = started(str(model))
    assert kinds(models) == [SnapshotCall]
    with running(models, limited(2**26)) as made:
        with model.open("r+b") as file:
            file.write(b"\0" * 16)
        page = made.client.get("/plans/one/1/0")
        assert page.status_code == 400
        assert "has been written to since it was loaded" in page.json()["error"]
        assert results(made.infer("one", {"x": X}))["y"].shape == (7, 4, 1, 1)
