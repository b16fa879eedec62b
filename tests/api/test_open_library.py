"""`leanconv.open`: compiled libraries answer as `load`'s networks do, without the compiler."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import DeviceError, InputError
from support.half_models import in_half
from support.onnx_models import model, small_cnn
from support.opened_libraries import library, linked, made_of_c, pretended

pytestmark = linked
SHAPE = (1, 3, 16, 16)
IMAGE = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
MODULES = 64  # of the package that opening a library loads


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of a small network for one thread."""
    return library(tmp_path_factory.mktemp("library"), small_cnn(batch=1), shapes=SHAPE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for two threads."""
    folder = tmp_path_factory.mktemp("library")
    return library(folder, small_cnn(batch=1), "two", shapes=SHAPE, threads=2)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return lc.load(small_cnn(batch=1), shapes=SHAPE, threads=1)(IMAGE)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), op, **attributes)


def of_types(made: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """The model with inputs and outputs of another type."""
    for each in (*made.graph.input, *made.graph.output):
        each.type.tensor_type.elem_type = kind
    return made


def fresh(program: str, *arguments: object) -> list[str]:
    """Run a program in a process of its own and return its lines."""
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


# -- answers -----------------------------------------------------------------------------------
NETWORKS = {
    "convolutions": small_cnn(batch=1),
    "half": in_half(small_cnn(batch=1)),
    "several": model(
        [node("Add", "a b", "s"), node("Sub", "a b", "d")], {"a": (2, 4), "b": (2, 4)}, ["s", "d"]
    ),
    "scalar": model([node("Relu", "x")], {"x": ()}, ["y"]),
    "bfloat16": of_types(
        model([node("Add", "x x")], {"x": (2, 3)}, ["y"], opset=21), TensorProto.BFLOAT16
    ),
    "int4": of_types(
        model([node("Identity", "x")], {"x": (2, 3)}, ["y"], opset=21), TensorProto.INT4
    ),
    "bool": of_types(model([node("Not", "x")], {"x": (2, 3)}, ["y"]), TensorProto.BOOL),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_library_is_called_and_answers_as_a_network(name: str, tmp_path: Path) -> None:
    shapes = SHAPE if name in ("convolutions", "half") else None
    net = lc.load(NETWORKS[name], shapes=shapes, threads=1)
    opened = lc.open(library(tmp_path, NETWORKS[name], shapes=shapes))
    assert (opened.inputs, opened.outputs) == (net.inputs, net.outputs)
    random = np.random.default_rng(0)
    feed = {
        spec.name: np.asarray(2 * random.standard_normal(spec.shape)).astype(spec.dtype.numpy)
        for spec in net.inputs
    }
    found, wanted = opened.run(feed), net.run(feed)
    assert found.keys() == wanted.keys()
    for got, want in zip(found.values(), wanted.values(), strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())
    (first, *_) = net.outputs
    chosen = opened.run([first.name], feed)
    assert chosen[0].tobytes() == found[first.name].tobytes()
    if len(found) == 1:
        assert opened(*feed.values()).tobytes() == opened(**feed).tobytes() == chosen[0].tobytes()


def test_arrays_that_no_kernel_reads_are_copied(file: Path, expected: np.ndarray) -> None:
    opened = lc.open(file)
    assert np.array_equal(opened(np.asfortranarray(IMAGE)), expected)
    unaligned = np.zeros(IMAGE.nbytes + 1, np.uint8)[1:].view("f4").reshape(SHAPE)
    unaligned[:] = IMAGE
    assert np.array_equal(opened(unaligned), expected)


def test_weights_that_are_packed_when_it_is_opened(tmp_path: Path, expected: np.ndarray) -> None:
    made = library(tmp_path, small_cnn(batch=1), shapes=SHAPE, weights="compact")
    assert np.array_equal(lc.open(made)(IMAGE), expected)


def test_weights_in_a_file_beside_it(tmp_path: Path, expected: np.ndarray) -> None:
    made = library(tmp_path, small_cnn(batch=1), shapes=SHAPE, weights="file")
    weights = tmp_path / "libnet.weights"
    body = weights.read_bytes()
    assert np.array_equal(lc.open(made)(IMAGE), expected)
    for damaged, message in ((body[:-1], "does not hold"), (bytes(len(body)), "holds other")):
        weights.write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            lc.open(made)
    weights.unlink()
    with pytest.raises(InputError, match="libnet.weights"):
        lc.open(made)


def test_damaged_places_of_sparse_weights_are_refused(tmp_path: Path) -> None:
    """Code follows them; damaged weights are numbers."""
    w = np.random.default_rng(1).standard_normal((32, 32, 3, 3)).astype("f4")
    w[np.abs(w) < 1.8] = 0
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    x = np.ones((1, 32, 12, 12), "f4")
    file = library(tmp_path, model([conv], {"x": x.shape}, ["y"], {"w": w}), weights="file")
    weights = tmp_path / "libnet.weights"
    body, sound, said = weights.read_bytes(), list[int](), set[str]()
    places = range(64, len(body), len(body) // 100)

    def opened(at: int) -> lc.Library:
        weights.write_bytes(body[:at] + bytes([body[at] ^ 0x80]) + body[at + 1 :])
        return lc.open(file)

    for at in places:
        try:
            opened(at).close()
            sound.append(at)
        except InputError as error:
            said.add(str(error)[-len("or is damaged") :])
    assert said == {"or is damaged"}
    assert 0.3 < 1 - len(sound) / len(places) < 0.6
    assert all(opened(at)(x).shape == x.shape for at in sound[::8])
    weights.write_bytes(body)
    assert np.array_equal(lc.open(file)(x), lc.conv2d(x, w, padding=1, algorithm="naive"))


def test_several_shapes(tmp_path: Path) -> None:
    shapes = [SHAPE, (2, 3, 16, 24)]
    opened = lc.open(library(tmp_path, small_cnn(), shapes=shapes))
    assert opened.inputs[0].shape == (None, 3, 16, None)
    assert opened.outputs[0].shape == (None, 5)
    for shape in shapes:
        x = np.random.default_rng(1).standard_normal(shape).astype("f4")
        assert np.array_equal(opened(x), lc.load(small_cnn(), shapes=shape, threads=1)(x))
    with pytest.raises(InputError, match=r"shapes x \(1, 3, 16, 24\); expected x .*16, 16\) or x"):
        opened(np.zeros((1, 3, 16, 24), "f4"))


@pytest.mark.parametrize(
    "array", [IMAGE.astype("f8"), IMAGE[:, :2], IMAGE[0], IMAGE.tolist(), np.zeros(SHAPE, "i8")]
)
def test_arrays_that_do_not_fit_are_refused_as_by_load(file: Path, array: Any) -> None:
    errors = []
    for net in (lc.open(file), lc.load(small_cnn(batch=1), shapes=SHAPE)):
        with pytest.raises(InputError) as caught:
            net(array)
        errors.append(str(caught.value))
        with pytest.raises(InputError, match="got inputs"):
            net.run({"z": IMAGE})
    assert errors[0] == errors[1]


def test_an_index_outside_is_refused_as_by_load(tmp_path: Path) -> None:
    made = of_types(
        model([node("Gather", "t x")], {"x": (5,)}, ["y"], {"t": np.ones((7, 3), "f4")}),
        TensorProto.INT64,
    )
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    shapes = [(5,), (4,)]
    opened, net = lc.open(library(tmp_path, made, shapes=shapes)), lc.load(made, threads=1)
    for x in (np.array([0, 1, 9, 2, 3]), np.array([0, 1, 2, 3, -8])):
        with pytest.raises(InputError) as wanted:
            net(x)
        with pytest.raises(InputError) as found:
            opened(x)
        assert str(found.value) == str(wanted.value)
        assert opened(np.array([0, 1, 6, -7])).shape == (4, 3)


# -- what it needs, and who may use it -----------------------------------------------------------
_PROGRAM = """
import sys
import leanconv as lc
import numpy as np
net = lc.open(sys.argv[1])
net(np.zeros(net.inputs[0].shape, "f4"))
names = [name for name in sys.modules if name.partition(".")[0] == "leanconv"]
print(len(names))
unwanted = "planner", "codegen", "kernels", "algorithms", "operators", "graph.onnx_import"
print(*[n for n in names if n.startswith(tuple(f"leanconv.{each}" for each in unwanted))])
print(*[name for name in ("llvmlite", "rich", "onnx") if name in sys.modules])
"""


def test_it_needs_neither_llvm_nor_the_planner(file: Path) -> None:
    count, *heavy = fresh(_PROGRAM, file)
    assert int(count) <= MODULES
    assert heavy == ["", ""]


@pytest.mark.parametrize("which", ["file", "shared"])
def test_threads_use_one_library_and_several(
    which: str, request: pytest.FixtureRequest, expected: np.ndarray
) -> None:
    place = request.getfixturevalue(which)
    opened, wrong = [lc.open(place), lc.open(place)], []

    def use(net: lc.Library) -> None:
        for _ in range(50):
            if not np.array_equal(net(IMAGE), expected):
                wrong.append(net)

    threads = [threading.Thread(target=use, args=(opened[n % 2],)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_process_ends_while_a_library_is_open(shared: Path) -> None:
    fresh(_PROGRAM, shared)
    fresh(f"{_PROGRAM}\nnet.itself = net", shared)


def test_a_closed_library_says_so(shared: Path, expected: np.ndarray) -> None:
    other = lc.open(shared)
    with lc.open(shared) as opened:
        assert np.array_equal(opened(IMAGE), expected)
    opened.close()
    with pytest.raises(InputError, match="closed"):
        opened(IMAGE)
    assert np.array_equal(other(IMAGE), expected)


_FORKS = """
import os, sys, threading
import leanconv as lc
import numpy as np
net, closed = lc.open(sys.argv[1]), lc.open(sys.argv[1])
closed.close()
x = np.ones(net.inputs[0].shape, "f4")
wanted = net(x)
ends = threading.Event()
def busy():
    while not ends.is_set():
        net(x)
thread = threading.Thread(target=busy)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        right = np.array_equal(net(x), wanted)
        try:
            closed(x)
        except lc.InputError:
            net.close()
            os._exit(0 if right else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ends.set()
thread.join()
assert np.array_equal(net(x), wanted)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_use_their_parents_library(shared: Path) -> None:
    fresh(_FORKS, shared)


def test_a_copy_opens_the_file_again(file: Path, expected: np.ndarray) -> None:
    opened = lc.open(file)
    for other in (copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        opened.close()
        assert np.array_equal(other(IMAGE), expected)


# -- names and files -----------------------------------------------------------------------------
def test_the_name_of_the_functions(file: Path, tmp_path: Path, expected: np.ndarray) -> None:
    renamed = shutil.copy(file, tmp_path / "digits.so.1")
    with pytest.raises(InputError, match="no function digits_run; .*give name="):
        lc.open(renamed)
    with pytest.raises(InputError, match="no function other_run"):
        lc.open(renamed, name="other")
    assert np.array_equal(lc.open(renamed, name="net")(IMAGE), expected)
    (tmp_path / "digits.json").write_text("[]")
    with pytest.raises(InputError, match="no function digits_run"):
        lc.open(renamed)
    shutil.copy(file.with_suffix(".json"), tmp_path / "digits.json")
    assert np.array_equal(lc.open(renamed)(IMAGE), expected)


def test_files_that_are_no_libraries(file: Path, tmp_path: Path) -> None:
    empty, text, folder = tmp_path / "libempty.so", tmp_path / "libtext.so", tmp_path / "libf.so"
    empty.touch()
    text.write_text("no library at all, but a text of more than sixty-four bytes, whatever it says")
    folder.mkdir()
    for place in (empty, text):
        with pytest.raises(InputError, match="no shared library, or damaged"):
            lc.open(place)
    with pytest.raises(InputError, match="folder"):
        lc.open(folder)
    with pytest.raises(InputError, match="there is no such file"):
        lc.open(tmp_path / "libnone.so")
    made = library(tmp_path, small_cnn(batch=1), shapes=SHAPE).with_suffix(".o")
    lc.compile(small_cnn(batch=1).SerializeToString(), made, shapes=SHAPE)
    with pytest.raises(InputError, match=r"is an object, .* compile the network with out='libnet"):
        lc.open(made)


def test_a_library_of_another_processor(file: Path, tmp_path: Path) -> None:
    body = bytearray(file.read_bytes())
    body[18] = 243  # RISC-V
    other = tmp_path / "libnet.so"
    other.write_bytes(body)
    with pytest.raises(InputError, match="another processor"):
        lc.open(other)


def test_a_library_that_is_cut_short_ends_no_process(file: Path, tmp_path: Path) -> None:
    body, cut = file.read_bytes(), tmp_path / "libnet.so"
    program = """
import sys
import leanconv as lc
body, cut = open(sys.argv[1], "rb").read(), sys.argv[2]
for size in (4, 40, 64, 200, 1000, 4096, len(body) // 2, len(body) * 9 // 10):
    with open(cut, "wb") as file:
        file.write(body[:size])
    try:
        lc.open(cut)
    except lc.InputError as error:
        print(error)
"""
    lines = fresh(program, file, cut)
    assert len(lines) >= 7  # what is last is not mapped
    assert all("damaged" in line or "cut short" in line for line in lines)
    assert len(body) > 4096


def test_libraries_that_leanconv_has_not_written(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no function other_run; expected a library as leanconv"):
        lc.open(made_of_c(tmp_path / "libother.so", "int other(void) { return 0; }"))
    facts = json.loads(file.with_suffix(".json").read_text())
    run = facts["runs"][0]
    damaged = [
        "",
        "{",
        "[]",
        {},
        {**facts, "runs": []},
        {**facts, "runs": [{**run, "inputs": [{**run["inputs"][0], "dtype": "float31"}]}]},
        {**facts, "runs": [{**run, "inputs": [{**run["inputs"][0], "shape": ["?"]}]}]},
    ]
    for number, each in enumerate(damaged):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(InputError, match="describes itself wrongly"):
            lc.open(pretended(tmp_path / str(number) / "libnet.so", each))


def test_a_processor_that_lacks_instructions(file: Path, tmp_path: Path) -> None:
    facts = json.loads(file.with_suffix(".json").read_text())
    (tmp_path / "wrong").mkdir()
    with pytest.raises(DeviceError, match=f"for {facts['targets'][0]['cpu']} .*this processor"):
        lc.open(pretended(tmp_path / "wrong" / "libnet.so", facts, result=3))
    with pytest.raises(DeviceError, match="fails, with 4"):
        lc.open(pretended(tmp_path / "libnet.so", facts, result=4))
