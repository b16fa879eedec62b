"""Networks whose packed weights are in a file that processes share."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.planner import weights as plan_weights
from leanconv.runtime.file_block import FileBlock
from leanconv.settings import Settings
from support.onnx_models import model

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(bool(os.environ.get("TEST_GUARDED")), reason="files have no guards"),
]
CHANNELS = 256


def network(seed: int = 0) -> onnx.ModelProto:
    """Convolutions by several methods, and a dense layer of 1 MiB; height and width are open."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / 30).astype(np.float32)

    constants = {
        "w1": weights(CHANNELS, 3, 3, 3),
        "w2": weights(CHANNELS, 1, 3, 3),
        "w3": weights(CHANNELS, CHANNELS, 1, 1),
        "w4": weights(64, CHANNELS, 3, 3),
        "b4": weights(64),
        "w5": weights(64, 1000),
        "slope": weights(1, 64, 1, 1),
    }
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=pads, strides=[2, 2]),
        helper.make_node("Conv", ["c1", "w2"], ["c2"], pads=pads, group=CHANNELS),
        helper.make_node("Conv", ["c2", "w3"], ["c3"]),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("Conv", ["r3", "w4", "b4"], ["c4"], pads=pads),
        helper.make_node("Mul", ["c4", "slope"], ["m4"]),
        helper.make_node("GlobalAveragePool", ["m4"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w5"], ["y"]),
    ]
    return model(nodes, {"x": (1, 3, "H", "W")}, ["y"], constants)


def image(size: int = 32, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, size, size)).astype(np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "net.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture(scope="module")
def expected(file: Path) -> np.ndarray:
    return np.array(lc.load(file, threads=1)(image()))


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.weights")}


def block_of(net: lc.Network) -> Any:
    return net.compiled.network.memory.blocks["weights"]  # type: ignore[attr-defined]


def test_the_second_network_packs_nothing_and_has_the_same_bits(
    file: Path, tmp_path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lc.load(file, threads=1, shared_weights=tmp_path / "w")
    assert np.array_equal(first(image()), expected)
    made = names(tmp_path / "w")
    assert len(made) == 1

    def never(*_: object) -> None:
        pytest.fail("it is packed already")

    monkeypatch.setattr("leanconv.planner.weights.fill_weights", never)
    for options in ({"threads": 2}, {"memory_limit": "1 GiB"}):
        second = lc.load(file, shared_weights=str(tmp_path / "w"), **options)  # type: ignore[arg-type]
        assert np.array_equal(second(image()), expected)
        assert isinstance(block_of(second), FileBlock)
        assert second.used_bytes == second.plan.memory_bytes
    for other in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert np.array_equal(other(image()), expected)
    assert names(tmp_path / "w") == made


def test_other_weights_and_ways_to_pack_have_files_of_their_own(file: Path, tmp_path: Path) -> None:
    seen: set[str] = set()
    ways: list[tuple[Any, dict[str, Any]]] = [
        (file, {}),
        (network(1).SerializeToString(), {}),
        (file, {"dtype": "float64"}),
        (file, {"precision": "float16"}),
        (file, {"algorithms": {"c4": "winograd"}}),
        (file, {"algorithms": {"c4": "im2col"}}),
        (file, {"algorithms": {"c4": "fft"}}),
    ]
    proto = onnx.load(file)
    for node in proto.graph.node:
        node.name = node.output[0]
    for source, options in ways:
        if "algorithms" in options:
            source = proto.SerializeToString()
        alone = lc.load(source, threads=1, **options)
        x = image().astype(alone.inputs[0].dtype)
        wanted = alone(x)
        for _ in range(2):
            shared = lc.load(source, threads=1, shared_weights=tmp_path / "w", **options)
            assert np.array_equal(shared(x), wanted)
        now = names(tmp_path / "w")
        assert len(now - seen) <= 1
        seen = now
    assert len(seen) >= 5


def test_a_second_shape_reads_the_weights_of_the_first(file: Path, tmp_path: Path) -> None:
    """In any order, in processes that see other shapes first."""
    for sizes in ((32, 48), (48, 32)):
        net = lc.load(file, threads=1, shared_weights=tmp_path / "w")
        for size in sizes:
            alone = lc.load(file, threads=1)
            assert np.array_equal(net(image(size)), alone(image(size)))
            assert net.used_bytes == net.plan.memory_bytes == alone.used_bytes
    assert len(names(tmp_path / "w")) <= 2


def test_a_folder_that_cannot_be_used_costs_no_more_than_memory(
    file: Path, tmp_path: Path, expected: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "w").write_text("a file")
    net = lc.load(file, threads=1, shared_weights=tmp_path / "w")
    assert np.array_equal(net(image()), expected)
    assert "packed weights are not shared" in caplog.text
    assert not isinstance(block_of(net), FileBlock)


def test_a_damaged_file_is_packed_anew(file: Path, tmp_path: Path, expected: np.ndarray) -> None:
    first = lc.load(file, threads=1, shared_weights=tmp_path / "w")
    first(image())
    (path,) = (tmp_path / "w").glob("*.weights")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.unlink()  # what is mapped is never written
    path.write_bytes(data)
    path.chmod(0o600)
    for _ in range(2):
        assert np.array_equal(
            lc.load(file, threads=1, shared_weights=tmp_path / "w")(image()), expected
        )
    assert np.array_equal(first(image()), expected)


def test_nothing_is_written_where_weights_are_few_or_the_setting_is_none(
    file: Path, tmp_path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(plan_weights, "_LEAST_BYTES", 2**30)
        net = lc.load(file, threads=1, shared_weights=tmp_path / "w")
        assert np.array_equal(net(image()), expected)
    none = Settings.from_environment({"HOME": "/", "LEANCONV_WEIGHT_CACHE_BYTES": "0"})
    monkeypatch.setattr("leanconv.api.cpu_backend.current_settings", lambda: none)
    net = lc.load(file, threads=1, shared_weights=tmp_path / "w")
    assert np.array_equal(net(image()), expected)
    assert not (tmp_path / "w").exists()


def test_true_is_a_folder_of_the_cache(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache_dir=tmp_path)
    monkeypatch.setattr("leanconv.api.cpu_backend.current_settings", lambda: settings)
    lc.load(file, threads=1, shared_weights=True)(image())
    assert len(names(tmp_path / "weights")) == 1


@pytest.mark.parametrize("given", ["", 1, b"w", object(), "a\0b"])
def test_what_is_no_folder_is_an_error(file: Path, given: Any) -> None:
    with pytest.raises(lc.SpecError, match="shared_weights is .*expected True, False or the path"):
        lc.load(file, shared_weights=given)


_WORKER = """
import json, re, sys
import numpy as np
import leanconv as lc

net = lc.load(sys.argv[1], threads=1, shared_weights=sys.argv[2])
y = net(np.load(sys.argv[3]))
print(json.dumps([float(v) for v in y.ravel()]), flush=True)
sys.stdin.readline()
held, inside = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}, False
for line in open("/proc/self/smaps"):
    if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
        inside = line.rstrip().endswith(".weights")
    name, _, rest = line.partition(":")
    if inside and name in held:
        held[name] += 1024 * int(rest.split()[0])
print(json.dumps(held), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_three_processes_hold_the_weights_once(
    file: Path, tmp_path: Path, expected: np.ndarray
) -> None:
    """They start at once, before there is a file."""
    np.save(tmp_path / "x.npy", image())
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    given = [str(file), str(tmp_path / "w"), str(tmp_path / "x.npy")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *given],
            env={**environment, "PYTHONHASHSEED": str(number)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert np.array_equal(json.loads(worker.stdout.readline()), expected.ravel())
        held = []
        for worker in workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(file=worker.stdin, flush=True)
            held.append(json.loads(worker.stdout.readline()))
    finally:
        for worker in workers:
            worker.communicate("\n")
    (path,) = (tmp_path / "w").glob("*.weights")
    size = path.stat().st_size
    assert size > 2**20
    assert sum(each["Pss"] for each in held) <= 1.1 * size
    assert all(each["Private_Dirty"] == 0 for each in held)
    assert all(each["Rss"] > size // 2 for each in held)
