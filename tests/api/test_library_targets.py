"""Compiled libraries for other systems: what their files hold, and what of it runs here.

Objects are read by their symbols. WebAssembly runs where there is node, AArch64 in the tests'
emulator.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.codegen.machine_code import linked_object
from leanconv.codegen.object_symbols import object_symbols
from leanconv.runtime.static_workers import windows_text
from leanconv.target import preset
from leanconv.target.systems import on_system
from support.emulated import LoadedObject, call
from support.onnx_models import Array
from support.quantised_models import microsoft
from support.quantised_models import model as quantised_model
from support.wasm import NODE, run_module

FUNCTIONS = {"arena_bytes", "check_cpu", "close", "init", "json", "run"}
FORMATS = {
    "haswell": "elf",
    "sapphirerapids:android": "elf",
    "skylake-avx512:freebsd": "elf",
    "znver3:none": "elf",
    "znver4:macos": "macho",
    "haswell:windows": "coff",
    "skylake-avx512:x86_64-pc-windows-msvc": "coff",
    "armv8-a": "elf",
    "neoverse-n1:aarch64-linux-android": "elf",
    "apple-m1:arm64-apple-macos": "macho",
    "apple-m1:ios": "macho",
    "wasm32-simd128": "wasm",
}
MSVC = {"_fltused"}  # of its library of C
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node")


def model(*nodes: object, inputs: dict[str, object], outputs: dict[str, object]) -> bytes:
    """Return a model of some nodes, with weights for what is named `w`."""
    values = [
        [helper.make_tensor_value_info(name, *about) for name, about in given.items()]
        for given in (inputs, outputs)
    ]
    numbers = np.random.default_rng(1).standard_normal((8, 4, 3, 3)) / 6
    weights = [helper.make_tensor("w", TensorProto.FLOAT, numbers.shape, numbers.ravel())]
    graph = helper.make_graph(list(nodes), "tiny", *values, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def tiny() -> bytes:
    """Return a convolution and what reads and writes other widths of vectors."""
    return model(
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
        inputs={"x": (TensorProto.FLOAT, (1, 4, 9, 9))},
        outputs={"y": (TensorProto.FLOAT, (1, 8, 1, 1))},
    )


def picture(seed: int = 0, shape: tuple[int, ...] = (1, 4, 9, 9)) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- objects -----------------------------------------------------------------------------------
@pytest.mark.parametrize("target", FORMATS)
def test_objects_define_the_functions_and_need_none(target: str, tmp_path: Path) -> None:
    made = lc.compile(tiny(), tmp_path / "net.o", target=target)
    found = object_symbols(made.files[0].read_bytes())
    assert found.format == FORMATS[target]
    assert {name for name in found.defined if not name.startswith("__real@")} == {
        f"net_{each}" for each in FUNCTIONS
    }
    assert found.needed <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_", *MSVC}
    assert FORMATS[target] != "wasm" or not found.needed


@pytest.mark.parametrize("target", ["znver3", "armv8-a:android", "apple-m1:macos"])
def test_workers_need_threads_of_posix(target: str, tmp_path: Path) -> None:
    made = lc.compile(tiny(), tmp_path / "net.o", target=target, threads=2)
    needed = object_symbols(made.files[0].read_bytes()).needed
    assert {"pthread_create", "pthread_join", "pthread_cond_wait"} <= needed
    others = {each for each in needed if not each.startswith("pthread_")}
    assert others <= {"sched_yield", "memcpy", "memset", "bzero", "_GLOBAL_OFFSET_TABLE_"}


def test_workers_on_windows_need_its_own_threads(tmp_path: Path) -> None:
    made = lc.compile(tiny(), tmp_path / "net.obj", target="haswell:windows", threads=2)
    needed = object_symbols(made.files[0].read_bytes()).needed
    assert {"CreateThread", "SleepConditionVariableSRW", "WaitForSingleObject"} <= needed
    assert not any(each.startswith(("pthread_", "sched_")) for each in needed)


def test_large_frames_on_windows_bring_what_touches_their_pages() -> None:
    text = """
define i32 @large(i32 %n) nounwind {
  %a = alloca [20000 x i8]
  %p = getelementptr i8, ptr %a, i32 %n
  store volatile i8 7, ptr %p
  ret i32 0
}
"""
    for system in ("windows", "x86_64-pc-windows-msvc"):
        target = on_system(preset("haswell"), system)
        found = object_symbols(linked_object([text, windows_text(1)], ["large"], target))
        assert (found.defined, found.needed - MSVC) == ({"large"}, frozenset())


@pytest.mark.parametrize("target", ["haswell", "armv8-a", "apple-m1:macos", "haswell:windows"])
def test_archives_have_an_index(target: str, tmp_path: Path) -> None:
    one = lc.compile(tiny(), tmp_path / "net.o", target=target).files[0].read_bytes()
    body = lc.compile(tiny(), tmp_path / "net.a", target=target).files[0].read_bytes()
    assert body.startswith(b"!<arch>\n")
    size = int(body[8 + 48 : 8 + 58])
    index, second = body[68 : 68 + size], 68 + size
    if target.endswith("macos"):
        assert index.startswith(b"__.SYMDEF SORTED\0\0\0\0")
        (count,) = struct.unpack_from("<I", index, 20)
        rows = [struct.unpack_from("<II", index, 24 + at) for at in range(0, count, 8)]
        names = index[24 + count + 4 :]
        found = {names[at : names.index(b"\0", at)].decode(): place for at, place in rows}
        assert set(found) == {f"_net_{each}" for each in FUNCTIONS}
    else:
        (count,) = struct.unpack_from(">I", index)
        places = struct.unpack_from(f">{count}I", index, 4)
        texts = index[4 + 4 * count :].split(b"\0")[:count]
        found = {text.decode(): place for text, place in zip(texts, places, strict=True)}
        assert set(found) == {f"net_{each}" for each in FUNCTIONS}
    assert set(found.values()) == {second}
    place = second + (80 if target.endswith("macos") else 60)
    assert body[place : place + len(one)] == one
    assert place % 8 == 0 or not target.endswith("macos")
    assert len(body) % 2 == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_archive_links(tmp_path: Path) -> None:
    lc.compile(tiny(), tmp_path / "libnet.a", threads=2)
    source = tmp_path / "main.c"
    source.write_text(
        '#include "libnet.h"\nint main(void) { return net_arena_bytes() != NET_ARENA_BYTES; }\n'
    )
    program = tmp_path / "main"
    command = ["cc", "-o", str(program), str(source), str(tmp_path / "libnet.a"), "-lpthread"]
    subprocess.run(command, check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


# -- what is refused ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("net.dll", {"target": "haswell:windows"}, "cannot be linked on this machine"),
        ("net.so", {"target": "haswell:windows"}, r"expected .* ends in \.dll, \.o, \.a"),
        ("net.wasm", {"target": "haswell"}, r"a \.wasm file cannot be for x86_64"),
        ("net.so", {"target": "wasm32-simd128"}, r"expected .* ends in \.wasm, \.o, \.a"),
        ("net.o", {"target": "haswell:beos"}, "got haswell:beos; expected one of linux, android"),
        ("net.o", {"target": "haswell:arm64-apple-macos"}, "triple that begins with x86_64"),
        ("net.o", {"target": "armv8-a:windows"}, "got armv8-a:windows; expected one of linux"),
        ("net.o", {"target": "wasm32-simd128:linux"}, "expected wasm32-simd128 alone"),
        ("net.o", {"target": "wasm32-simd128", "threads": 2}, "got threads=2 for wasm32"),
        ("net.o", {"target": "haswell,haswell:macos"}, "expected processors of one kind"),
    ],
)
def test_bad_targets(out: str, options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(lc.SpecError, match=message):
        lc.compile(tiny(), tmp_path / out, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


# -- what runs ---------------------------------------------------------------------------------
def test_aarch64_in_the_emulator(tmp_path: Path) -> None:
    made = lc.compile(tiny(), tmp_path / "net.o", target="armv8-a")
    code = LoadedObject(made.files[0].read_bytes())
    x, y = picture(), np.full((1, 8, 1, 1), np.nan, np.float32)
    raw = np.full(made.block_bytes + 64, 0xFF, np.uint8)
    block = raw[-raw.ctypes.data % 64 :][: made.block_bytes]
    io = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    reached = [x, y, raw, io]
    assert call(code, "net_arena_bytes", [], reached) == made.block_bytes
    assert call(code, "net_init", [block.ctypes.data], reached) & 0xFFFFFFFF == 0
    for _ in range(2):
        y[:] = np.nan
        status = call(code, "net_run", [io.ctypes.data, block.ctypes.data], reached)
        assert status & 0xFFFFFFFF == 0
        np.testing.assert_allclose(y, lc.load(tiny())(x), rtol=2e-6, atol=1e-7)


@needs_node
def test_webassembly_in_node(tmp_path: Path) -> None:
    made = lc.compile(tiny(), tmp_path / "net.wasm", target="wasm32-simd128")
    assert made.files[0].read_bytes().startswith(b"\0asm\1\0\0\0")
    x = picture()
    found, said = run_module(made.files[0], {"x": x})
    assert said["codes"] == [1, 4, 0, 0, 0, 0, 0]
    assert said["imports"] == []
    assert '"name": "net"' in said["about"]
    np.testing.assert_allclose(found["y"], lc.load(tiny())(x), rtol=2e-6, atol=1e-7)


@needs_node
def test_several_shapes_and_places_of_weights_in_node(tmp_path: Path) -> None:
    shapes = [{"x": (1, 4, 9, 9)}, {"x": (3, 4, 9, 9)}]
    for weights in ("packed", "compact", "file"):
        made = lc.compile(
            tiny(), tmp_path / "net.wasm", target="wasm32-simd128", shapes=shapes, weights=weights
        )
        for given in shapes:
            x = picture(shape=given["x"])
            found, _ = run_module(made.files[0], {"x": x})
            expected = lc.load(tiny(), shapes=given)(x)
            np.testing.assert_allclose(found["y"], expected, rtol=2e-6, atol=1e-7)


@needs_node
def test_halves_in_node(tmp_path: Path) -> None:
    """Each float16 as float32, and numbers round as NumPy rounds them."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = bits[~np.isnan(bits)]
    wide = halves.astype(np.float32)
    finite = wide[np.isfinite(wide)]
    between = finite[:-1] + np.diff(finite) / 2
    edges = np.array([65519.996, 65520, 1e30, -np.inf, 2.0**-25, 2.0**-25 * 1.001, -(2.0**-26)])
    x = np.concatenate([wide, between, np.nextafter(between, np.inf), edges]).astype(np.float32)
    kinds = {"x": (TensorProto.FLOAT16, halves.shape), "v": (TensorProto.FLOAT, x.shape)}
    body = model(
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["v"], ["z"], to=TensorProto.FLOAT16),
        inputs=kinds,
        outputs={"y": (TensorProto.FLOAT, halves.shape), "z": (TensorProto.FLOAT16, x.shape)},
    )
    made = lc.compile(body, tmp_path / "net.wasm", target="wasm32-simd128")
    found, _ = run_module(made.files[0], {"x": halves, "v": x})
    np.testing.assert_array_equal(found["y"].view(np.uint32), wide.view(np.uint32))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(found["z"].view(np.uint16), expected.view(np.uint16))


@needs_node
def test_functions_and_remainders_in_node(tmp_path: Path) -> None:
    """What rests on exact differences of products, without an instruction for these."""
    x = (picture(2, (500,)) * np.logspace(-3, 6, 500)).astype(np.float32)
    b = np.abs(picture(3, (500,))) + np.float32(0.01)
    names = ("Sin", "Cos", "Tan", "Exp", "Erf")
    body = model(
        *(helper.make_node(op, ["x"], [op]) for op in names),
        helper.make_node("Mod", ["x", "b"], ["Mod"], fmod=1),
        inputs=dict.fromkeys(("x", "b"), (TensorProto.FLOAT, (500,))),
        outputs=dict.fromkeys((*names, "Mod"), (TensorProto.FLOAT, (500,))),
    )
    feed = {"x": x, "b": b}
    made = lc.compile(body, tmp_path / "net.wasm", target="wasm32-simd128")
    found, _ = run_module(made.files[0], feed)
    for name, expected in lc.load(body).run(feed).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-30, err_msg=name)
    np.testing.assert_array_equal(found["Mod"], np.fmod(x, b))


@needs_node
def test_codes_have_their_bits_in_node(tmp_path: Path) -> None:
    """Sums of codes are rounded once, too, where a convolution adds what another one gave."""
    rng = np.random.default_rng(4)
    constants = {
        "xs": np.float32(0.11),
        "xz": np.uint8(7),
        "w": rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.001, 0.002, 8).astype(np.float32),
        "wz": np.zeros(8, np.int8),
        "as": np.float32(0.217),
        "az": np.uint8(120),
        "ys": np.float32(0.303),
        "yz": np.uint8(99),
    }
    conv = ["x", "xs", "xz", "w", "ws", "wz", "as", "az"]
    nodes = [
        helper.make_node("QLinearConv", conv, ["a"], pads=[1, 1, 1, 1]),
        microsoft("QLinearAdd", ["a", "as", "az", "x", "xs", "xz", "ys", "yz"], ["y"]),
    ]
    x = rng.integers(0, 256, (1, 8, 15, 15)).astype(np.uint8)
    body = quantised_model(nodes, {"x": x}, constants, ["y"]).SerializeToString()
    made = lc.compile(body, tmp_path / "net.wasm", target="wasm32-simd128")
    found, _ = run_module(made.files[0], {"x": x})
    np.testing.assert_array_equal(found["y"], lc.load(body)(x))
