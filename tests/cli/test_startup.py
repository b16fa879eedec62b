"""What `leanconv run` and `profile` say of how long a network takes until it answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leanconv.cli.times import Startup, process_ns, started
from leanconv.progress import count_kernels, spending, spent
from support.cache_check import run_program
from support.onnx_models import small_cnn

X = np.ones((2, 3, 16, 16), "f4")


def test_time_within_is_not_counted_twice() -> None:
    with spent() as found:
        with spending("planning"):
            with spending("code"):
                count_kernels(3, 1)
            with pytest.raises(KeyError), spending("code"):
                raise KeyError
            assert found.turn("planning") == "planning"
    assert found.ns.keys() == {"planning", "code"}
    assert all(ns >= 0 for ns in found.ns.values())
    assert (found.kernels, found.compiled) == (3, 1)
    with spending("nobody asks"):
        count_kernels(1, 1)
    assert (found.kernels, "nobody asks" in found.ns) == (3, False)


def test_parts_make_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(small_cnn().SerializeToString())
    network, startup = started(str(path), "run", {"threads": 1})
    startup = startup.planned(lambda: network.bind({network.inputs[0].name: X.shape}))
    assert {"reading", "planning", "code"} <= startup.spent_ns.keys()
    assert sum(startup.spent_ns.values()) <= startup.load_ns + startup.plan_ns
    assert startup.kernels > 0
    assert startup.to_json()["compiled_kernels"] == startup.compiled
    before = process_ns()
    assert before is None or startup.ready_ns < before + 10**9


def test_text_says_where_kernels_come_from() -> None:
    known = {"reading": 10_000_000, "planning": 30_000_000}
    startup = Startup(50_000_000, True, 200_000_000, spent_ns=known, kernels=4)
    assert startup.text == (
        "ready in 250 ms (start and imports 200 ms, reading 10 ms, planning 30 ms, other 10 ms; "
        "4 kernels from the cache)"
    )
    assert startup.answered(5_000_000).answered(9).text.endswith("; first run 5 ms")
    compiled = Startup(1, True, None, kernels=4, compiled=3)
    assert "(other 1 ns; 3 of 4 kernels compiled)" in compiled.text


@pytest.mark.parametrize("more", [[], ["--shape", "2x3x16x16"]])
def test_a_second_run_plans_nothing(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(small_cnn(batch=2).SerializeToString())
    np.save(tmp_path / "x.npy", np.concatenate([X] * 2)[:2])
    words = ["run", str(tmp_path / "small.onnx"), str(tmp_path / "x.npy"), "--json", *more]
    program = f"""
import sys
from leanconv.cli.main import main
code = main({words!r})
ours = [name for name in sys.modules if name.startswith("leanconv.")]
late = ("algorithms", "graph.passes", "graph.ops", "graph.convert", "kernels", "planner", "cli.s")
print("@", code, len(ours), [n for n in ours if n.split("leanconv.")[1].startswith(late)])
"""
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path / "c"), "LEANCONV_SNAPSHOT_CACHE_BYTES": "1GiB"}
    first, second = (run_program(program, **settings).stdout.split("@") for _ in range(2))
    code, count, late = second[1].split(maxsplit=2)
    assert (code, late.strip()) == ("0", "[]")
    assert int(count) < 100 < int(first[1].split()[1])
    reports = [json.loads(each[0]) for each in (first, second)]
    for name in ("memory_predicted_bytes", "memory_used_bytes"):
        assert reports[0][name] == reports[1][name] > 0
    assert reports[0]["images"][0]["outputs"] == reports[1]["images"][0]["outputs"]
