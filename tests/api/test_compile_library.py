"""Networks as libraries without Python: the bits of `load`, and what a C program sees."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.codegen.host import llvm_facts, may_use_tiles
from leanconv.runtime import cpu_checks
from support import loops
from support.control_flow import node
from support.libraries import Instance, check_as_loaded
from support.onnx_models import Array
from support.pruned_networks import mobile
from support.random_networks import RandomNetwork

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
NULL_POINTER, INDEX_OUTSIDE, WRONG_CPU, NOT_ALIGNED, WRONG_WEIGHTS, NOT_PREPARED = range(1, 7)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def digit(batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Return random inputs of the network of digits."""
    name, shape = lc.load(DIGITS).inputs[0].name, (batch, 1, 32, 32)
    return {name: np.random.default_rng(seed).random(shape, np.float32)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network of digits for one picture and one thread."""
    return lc.compile(DIGITS, tmp_path_factory.mktemp("digits") / "libnet.so").files[0]


# -- bits --------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_are_those_of_load(threads: int, tmp_path: Path) -> None:
    made = check_as_loaded(DIGITS, [digit()], tmp_path, threads)
    assert made.block_bytes < 1.5 * 2**20
    assert sum(file.stat().st_size for file in made.files) < 1e6


def test_several_shapes_share_their_weights(tmp_path: Path) -> None:
    feeds = [digit(batch) for batch in (1, 2, 5)]
    made = check_as_loaded(DIGITS, feeds, tmp_path, threads=2)
    one = lc.compile(DIGITS, tmp_path / "one.o", shapes=(1, 1, 32, 32), threads=2)
    assert made.weight_bytes < 2 * one.weight_bytes


def test_each_size_of_a_range_has_a_function(tmp_path: Path) -> None:
    (name,) = digit()
    ranges = {name: ((1, 3), 1, 32, 32)}
    made = lc.compile(DIGITS, tmp_path / "libnet.so", shapes=ranges)
    facts = json.loads(made.files[2].read_text())
    found = {run["function"] for run in facts["runs"]}
    assert found == {f"net_run_{batch}x1x32x32" for batch in (1, 2, 3)}
    instance = Instance(made.files[0])
    for feed in map(digit, (3, 1)):
        expected = lc.load(DIGITS, threads=1, shapes=feed[name].shape).run(feed)
        for each, array in instance.run(feed).items():
            np.testing.assert_array_equal(array, expected[each])
    with pytest.raises(lc.SpecError, match="of 100 sizes; expected at most 64: give larger steps"):
        lc.compile(DIGITS, tmp_path / "net.o", shapes={name: ((1, 100), 1, 32, 32)})


def test_sizes_of_a_range_are_planned_each_for_itself(tmp_path: Path) -> None:
    """Where its size is open, a mobile block of 7x7 may be computed in another form."""
    data = mobile(0, size="size")
    made = lc.compile(data, tmp_path / "libnet.so", shapes=(1, 64, (7, 28, 7), (7, 28, 7)))
    instance, opened = Instance(made.files[0]), lc.load(data, threads=1)
    for size in (7, 14, 21, 28):
        x = np.random.default_rng(size).standard_normal((1, 64, size, size)).astype("f4")
        expected = lc.load(data, threads=1, shapes=x.shape)(x)
        (found,) = instance.run({"x": x}).values()
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(opened(x), expected, atol=1e-5)


def test_of_several_targets_the_best_runs(tmp_path: Path) -> None:
    made = check_as_loaded(DIGITS, [digit()], tmp_path, target="haswell,host")
    assert set(made.targets) == {"haswell", "host"}


def test_compact_weights_are_packed_at_the_start(tmp_path: Path) -> None:
    shapes = [(1, 1, 32, 32), (3, 1, 32, 32)]
    packed = lc.compile(DIGITS, tmp_path / "packed.o", shapes=shapes)
    made = check_as_loaded(DIGITS, [digit(), digit(3)], tmp_path, weights="compact")
    assert made.weight_bytes <= packed.weight_bytes


def test_weights_in_a_file(tmp_path: Path) -> None:
    made = check_as_loaded(DIGITS, [digit(), digit(3)], tmp_path, threads=2, weights="file")
    file = made.files[-1]
    assert (file.name, file.stat().st_size) == ("libnet.weights", made.weight_bytes)
    assert made.files[0].stat().st_size < 200_000
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(AssertionError):
        Instance(made.files[0])
    data[5] ^= 1
    file.write_bytes(data)
    instance = Instance(made.files[0])
    block, weights = instance.addresses
    assert instance.call("init", block, None) == NULL_POINTER
    assert instance.call("init", block, weights + 8) == NOT_ALIGNED
    assert instance.call("init", block, block) == WRONG_WEIGHTS
    instance.close()


def test_streamed_weights_are_pages_of_the_file(tmp_path: Path) -> None:
    channels, layers, numbers = 256, 4, np.random.default_rng(0)
    kernels = numbers.standard_normal((layers, channels, channels)) / channels**0.5
    weights = [
        helper.make_tensor(f"w{i}", TensorProto.FLOAT, (channels, channels, 1, 1), kernel.ravel())
        for i, kernel in enumerate(kernels)
    ]
    nodes = [helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(layers)]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, 2, 2))
        for name in ("x0", f"x{layers}")
    )
    graph = helper.make_graph(nodes, "layers", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data, limit = model.SerializeToString(), 600 * 1024
    with pytest.raises(lc.BudgetError, match="or stream_weights=True"):
        lc.compile(data, tmp_path / "net.o", memory_limit=limit)
    feed = {"x0": numbers.standard_normal((1, channels, 2, 2)).astype(np.float32)}
    made = check_as_loaded(data, [feed], tmp_path, memory_limit=limit, stream_weights=True)
    assert made.block_bytes <= limit


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.drawn
def test_random_networks(seed: int, tmp_path: Path) -> None:
    case = RandomNetwork(seed)
    options = {
        "weights": ("packed", "compact")[seed % 2],
        "target": ("host", "haswell,host")[seed // 2 % 2],
        "reproducible": seed % 5 == 0,
    }
    feeds = case.feeds[: 1 + seed % 2]
    check_as_loaded(case.proto.SerializeToString(), feeds, tmp_path, 1 + seed % 3, **options)


def test_recurrent_layers(tmp_path: Path) -> None:
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=5)]
    numbers = np.random.default_rng(0)
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, numbers.standard_normal(shape).ravel())
        for name, shape in (("w", (1, 20, 4)), ("r", (1, 20, 5)))
    ]
    shapes = {"x": (7, 2, 4), "y": (7, 1, 2, 5), "h": (1, 2, 5), "c": (1, 2, 5)}
    x, *outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    graph = helper.make_graph(nodes, "recurrent", [x], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feed = {"x": numbers.standard_normal((7, 2, 4)).astype(np.float32)}
    check_as_loaded(model.SerializeToString(), [feed], tmp_path, threads=2)


@pytest.mark.parametrize("count", [6, 7])
def test_loops_move_through_what_they_write(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops.hold(monkeypatch)
    step = [node("Conv", "s w", "c", pads=[1] * 4), node("Tanh", "c", "t"), node("Relu", "t", "u")]
    inside = loops.body(step, "t u")
    nodes = [loops.loop("n true x", "y z", inside), node("Neg", "z", "v")]
    model = loops.made(nodes, count, "y v", (1, 3, 6, 6))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    check_as_loaded(model.SerializeToString(), [feed], tmp_path, threads=2)


# -- what a caller sees ------------------------------------------------------------------------
def test_instances_run_at_once_and_after_a_fork(library: Path) -> None:
    feeds = [digit(seed=seed) for seed in range(4)]
    expected = [Instance(library).run(feed) for feed in feeds]

    def answers(feed: dict[str, Array]) -> dict[str, Array]:
        instance = Instance(library)
        return [instance.run(feed) for _ in range(50)][-1]

    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(answers, feeds), expected, strict=True):
            for name, array in wanted.items():
                np.testing.assert_array_equal(found[name], array)
    instance = Instance(library)
    child = os.fork()
    if not child:
        same = all(np.array_equal(a, expected[0][n]) for n, a in instance.run(feeds[0]).items())
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_bad_addresses_are_refused(library: Path) -> None:
    instance = Instance(library)
    size = instance.facts["block_bytes"]
    block = (ctypes.c_char * (size + 64))()
    even = -(-ctypes.addressof(block) // 64) * 64
    assert instance.call("init", None) == NULL_POINTER
    assert instance.call("init", even + 8) == NOT_ALIGNED
    assert instance.call("run", None, even) == NULL_POINTER
    assert instance.call("run", even, None) == NULL_POINTER
    assert instance.call("close", None) == NULL_POINTER
    assert instance.call("run", even, even) == NOT_PREPARED
    ctypes.memmove(even, instance.addresses[0], size)
    assert instance.call("run", even, even) == NOT_PREPARED, "it has moved"
    assert instance.call("check_cpu") == 0
    assert instance.call("close", even) == NOT_PREPARED
    instance.close()
    with pytest.raises(RuntimeError, match=f"returns {NOT_PREPARED}"):
        instance.run(digit())
    assert instance.call("close", instance.addresses[0]) == NOT_PREPARED


def test_another_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = cpu_checks._FEATURES
    monkeypatch.setitem(features, "avx2", (1, 0, 2, 16))  # a bit that no processor sets
    made = lc.compile(DIGITS, tmp_path / "libnet.so", target="haswell")
    library = ctypes.CDLL(str(made.files[0]))
    assert library.net_check_cpu() == WRONG_CPU
    block = (ctypes.c_char * (made.block_bytes + 64))()
    even = -(-ctypes.addressof(block) // 64) * 64
    assert library.net_init(ctypes.c_void_p(even)) == WRONG_CPU


def test_matrix_tiles_are_asked_for_where_code_uses_them(tmp_path: Path) -> None:
    made = lc.compile(DIGITS, tmp_path / "net.o", target="sapphirerapids")
    assert "amx_int8" not in json.loads(made.files[2].read_text())["targets"][0]["extensions"]
    numbers, channels = np.random.default_rng(0), 256
    weight = numbers.integers(-100, 100, (channels, channels, 3, 3)).astype(np.int8)
    given = [("s", TensorProto.FLOAT, 0.02), ("z", TensorProto.UINT8, 128)]
    given += [("t", TensorProto.FLOAT, 3.0), ("o", TensorProto.INT8, 0)]
    constants = [helper.make_tensor(name, kind, (), [value]) for name, kind, value in given]
    constants.append(numpy_helper.from_array(weight, "w"))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.UINT8, (1, channels, 28, 28))
        for name in "xy"
    )
    names = ["x", "s", "z", "w", "s", "o", "t", "z"]
    nodes = [helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])]
    graph = helper.make_graph(nodes, "codes", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = model.SerializeToString()
    made = lc.compile(data, tmp_path / "libnet.so", target="sapphirerapids", name="net")
    facts = json.loads(made.files[2].read_text())
    assert "amx_int8" in facts["targets"][0]["extensions"]
    assert "amx" in [step["algorithm"] for step in facts["runs"][0]["plans"][0]["steps"]]
    image = numbers.integers(0, 256, (1, channels, 28, 28)).astype(np.uint8)
    np.save(tmp_path / "x.npy", image)
    code = (
        "import sys, numpy, leanconv\n"
        "try: net = leanconv.open(sys.argv[1])\n"
        "except leanconv.DeviceError: sys.exit(3)\n"
        "numpy.save(sys.argv[2], net(numpy.load(sys.argv[3])))\n"
    )
    paths = [tmp_path / name for name in ("libnet.so", "y.npy", "x.npy")]
    ran = subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=False)
    features = [f"avx512{name}" for name in ("fp16", "bf16", "vnni", "vbmi")]
    features += ["amx-tile", "amx-int8", "avxvnni"]
    here = all(map(llvm_facts().has.get, features)) and may_use_tiles()
    assert ran.returncode == (0 if here else 3)
    if not ran.returncode:
        np.testing.assert_array_equal(np.load(paths[1]), lc.load(data)(image))


def test_an_index_outside_is_told(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3))
    i = helper.make_tensor_value_info("i", TensorProto.INT64, (2,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    graph = helper.make_graph(nodes, "gather", [x, i], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    feed = {"x": data, "i": np.array([2, -1])}
    made = check_as_loaded(model.SerializeToString(), [feed], tmp_path)
    instance = Instance(made.files[0])
    with pytest.raises(RuntimeError, match=f"returns {INDEX_OUTSIDE}"):
        instance.run({"x": data, "i": np.array([2, 4])})
    np.testing.assert_array_equal(instance.run(feed)["y"], data[[2, 3]])


def test_the_header_is_c99_and_cpp(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("class", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("*/ 1 out\\\n", TensorProto.FLOAT, (2, 3))
    nodes = [helper.make_node("Relu", ["class"], ["*/ 1 out\\\n"])]
    graph = helper.make_graph(nodes, "names", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    lc.compile(model.SerializeToString(), tmp_path / "libnet.so", shapes=[(2, 3)])
    lc.compile(DIGITS, tmp_path / "libtwo.so", shapes=[(1, 1, 32, 32), (2, 1, 32, 32)])
    source = tmp_path / "main.c"
    source.write_text('#include "net.h"\n#include "two.h"\nint main(void) { return NET_OK; }\n')
    for name in ("net", "two"):
        (tmp_path / f"lib{name}.h").rename(tmp_path / f"{name}.h")
    for language in (["-std=c99"], ["-x", "c++", "-std=c++11"]):
        strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
        tool = "cc" if "-std=c99" in language else shutil.which("c++")
        if tool:
            subprocess.run([tool, *language, *strict, str(source)], check=True)


@pytest.mark.parametrize("weights", ["packed", "file"])
def test_a_folder_holds_a_program_that_runs(weights: str, tmp_path: Path) -> None:
    lc.compile(DIGITS, tmp_path, threads=2, weights=weights)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    build = ["cc", *strict, "main.c", "net.o", "-o", "main", "-lpthread"]
    subprocess.run(build, cwd=tmp_path, check=True)
    feed = digit()
    (tmp_path / "input.bin").write_bytes(next(iter(feed.values())).tobytes())
    subprocess.run(["./main", "input.bin", "output.bin"], cwd=tmp_path, check=True)
    found = np.fromfile(tmp_path / "output.bin", np.float32)
    (expected,) = lc.load(DIGITS, threads=2).run(feed).values()
    np.testing.assert_array_equal(found, expected.ravel())
    wrong = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, b"usage: main INPUT0 OUTPUT0\n")


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_it_needs_nothing_of_others(library: Path, tmp_path: Path) -> None:
    made = lc.compile(DIGITS, tmp_path / "net.o").files[0]
    found = subprocess.run(["nm", "-u", str(made)], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) <= {"U", "_GLOBAL_OFFSET_TABLE_", "memcpy", "memset"}
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in exported.stdout.splitlines()}
    functions = ("arena_bytes", "check_cpu", "close", "init", "json", "run")
    assert names == {f"net_{each}" for each in functions}


def test_the_same_plan_is_the_same_file(tmp_path: Path) -> None:
    first, second = (
        lc.compile(DIGITS, tmp_path / name, name="net", target="haswell").files[0].read_bytes()
        for name in ("a.o", "b.o")
    )
    assert first == second


# -- what is refused ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"out": "net.txt"},
            r"expected a folder, or a name that ends in .o, .obj, .a",
        ),
        ({"name": "a b"}, "got name 'a b'; expected a C identifier: give name="),
        ({"out": "1net.so"}, "got name '1net'"),
        ({"weights": "small"}, "got weights='small'; expected one of packed, compact, file"),
        ({"target": "haswel"}, "wasm32-simd128: did you mean haswell?"),
        (
            {"target": "pdp11"},
            "target 'pdp11' is not known; expected host, for this machine, or one of",
        ),
        ({"target": "haswell,neoverse-n1"}, "expected processors of one kind of system"),
        ({"target": "haswell,haswell"}, "got the target 'haswell' twice"),
        ({"shapes": []}, r"got shapes=\[\]; expected at least one"),
        ({"shapes": [(1, 1, 32, 32), (1, 1, 32, 32)]}, "twice; expected each once"),
        ({"shapes": (1, 3, 32, 32)}, "expected an input of 1 channels"),
    ],
)
def test_bad_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    given = dict(options)
    out = tmp_path / str(given.pop("out", "net.o"))
    with pytest.raises((lc.SpecError, lc.InputError, lc.ModelError), match=message):
        lc.compile(DIGITS, out, **given)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_open_shape_is_refused(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", "width"))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", "width"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(lc.SpecError, match=r"'x' has the shape nxwidth.* give shapes=\{'x'"):
        lc.compile(model.SerializeToString(), tmp_path / "net.o")


def test_what_numpy_computes_is_refused(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3))
    y = helper.make_tensor_value_info("y", TensorProto.INT64, (2, "n"))
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"], "found")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(lc.UnsupportedError, match=r"'found' \(Cut\).* take these nodes out"):
        lc.compile(model.SerializeToString(), tmp_path / "net.o")


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(lc.InputError, match=r"'cc' is not there to make a .so file; write a .o"):
        lc.compile(DIGITS, tmp_path / "libnet.so")
    with pytest.raises(lc.InputError, match="cannot be written: No such file or directory"):
        lc.compile(DIGITS, tmp_path / "missing" / "net.o")
    assert not list(tmp_path.iterdir())
