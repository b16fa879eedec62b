"""A network's program is data: it names no address, and runs in whatever memory it is linked to."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from leanconv.codegen import compiler
from leanconv.codegen.forms import emitted, instance_of
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import Calls, PackCall
from leanconv.codegen.machine_code import compile_text
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.kernels.packing import copied
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import (
    CompiledNetwork,
    keep_constants,
    link,
    lower,
    place,
    running_calls,
)
from leanconv.planner.found_plans import decide
from leanconv.planner.lowered_graph import ConstantPool, OwnedGraph
from leanconv.planner.packing import PackProgram, pack_program, placed_calls
from leanconv.planner.weight_streaming import lay_out, streamed_within
from leanconv.records import dataclass
from leanconv.runtime.file_block import FileBlock, unnamed_block
from leanconv.runtime.memory import Block, SharedArena
from leanconv.runtime.portable import PortableProgram
from support.control_flow import node
from support.loops import CONV, hold, loop, made
from support.onnx_models import model, small_cnn

pytestmark = pytest.mark.once  # any plan will do
RANDOM = np.random.default_rng(5)


def several() -> onnx.ModelProto:
    """Two inputs, two outputs, one of which is a part of the other."""
    held = {"w": RANDOM.standard_normal((8, 4, 3, 3)).astype("f"), "s": np.full(8, 0.1, "f")}
    nodes = [
        node("Conv", "a w", "c", pads=[1] * 4),
        node("Relu", "c", "r"),
        node("Add", "r b", "y"),
        node("GlobalAveragePool", "y", "p"),
        node("Flatten", "p", "f"),
        node("Mul", "f s", "z"),
    ]
    inputs: dict[str, Any] = {"a": (1, 4, 9, 9), "b": (1, 8, 9, 9)}
    return model(nodes, inputs, ["y", "z"], held)


def dense() -> onnx.ModelProto:
    """Layers whose weights are large beside their values."""
    held, nodes, x = {}, [], "x"
    for number in range(4):
        held[f"w{number}"] = RANDOM.standard_normal((160, 160)).astype("f") / 12
        nodes.append(node("Gemm", f"{x} w{number}", f"g{number}", transB=1))
        x = f"g{number}"
    return model(nodes, {"x": (2, 160)}, [x], held)


@dataclass(frozen=True)
class Case:
    """A network, its limit of bytes, whether its weights are streamed, and what it is to have."""

    proto: onnx.ModelProto
    limit: int | None = None
    streams: bool = False
    has: str = ""


def cases() -> dict[str, Case]:
    looped = made([loop("n true x", "y", CONV)], shape=(1, 3, 6, 6))
    return {
        "plain": Case(small_cnn()),
        "several inputs and outputs": Case(several()),
        "a loop": Case(looped, has="repeats"),
        "a limit": Case(small_cnn(), limit=2**19),
        "streamed": Case(dense(), streams=True, has="streamed"),
    }


@dataclass(frozen=True, eq=False)
class Made:
    """The program of a network, what prepares its constants, and the code of both."""

    graph: Graph
    program: PortableProgram
    packing: PackProgram
    image_bytes: int
    library: Library
    kernels: Sequence[Kernel]
    budget: Planner


def prepare_calls(pool: ConstantPool) -> Calls:
    """What makes all constants of a network of its own, by name."""
    found: dict[str, Sequence[PackCall]] = {n: copied(array) for n, array in pool.arrays.items()}
    for packing in pool.packings:
        found.update(packing.calls())
    return found


def portable(case: Case) -> Made:
    read = read_model(case.proto.SerializeToString())
    shapes = {
        each.name: tuple(
            n if isinstance(n, int) else (24 if axis else 1)
            for axis, n in enumerate(each.shape or ())
        )
        for each in read.inputs
    }
    graph = run_passes(read.bind(shapes))
    budget = Planner(graph, host(), 2, Accuracy(), streams=case.streams)
    decided = decide(graph, budget, case.limit)
    lowered = lower(graph, decided)
    layout = streamed_within(lowered, 2, 0) if case.streams else lay_out(lowered, 2)
    calls, making = running_calls(lowered, decided.planner), prepare_calls(lowered.constants)
    kernels = [call.kernel for call in calls]
    kernels += [call.kernel for pieces in making.values() for call in pieces]
    library = compiler.load(kernels)
    program = place(lowered, layout, calls, library.form, 2)
    first = {layout.image[name]: name for name in layout.image}  # equal constants are one
    placed = placed_calls({n: making[n] for n in first.values() if n in making}, layout.image)
    packing, (_, size) = pack_program(placed, library.form, 2), lowered.constants.places()
    return Made(graph, program, packing, size, library, kernels, budget)


def numbers(value: object) -> Iterator[int]:
    """All integers in plain data, words of code apart; anything else fails."""
    if is_dataclass(value):
        for field in fields(value):
            if field.name != "words":
                yield from numbers(getattr(value, field.name))
    elif isinstance(value, tuple):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int):
        yield value
    else:
        assert isinstance(value, str), f"{value!r} is no plain data"


def plain(value: Any) -> Any:
    """A record as JSON has it."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def prepared(packing: PackProgram, size: int, library: Library) -> np.ndarray:
    """The constants of a network, which its `prepare` makes in fresh memory of zeros."""
    end = packing.program.constant_bytes
    tables, image = Block(end), Block(size)
    for offset, table in packing.tables.items():
        tables.write(offset, table)
    arena = SharedArena().part(packing.program.arena_bytes)
    entry = link(packing.program, library, tables.address.__add__, arena)
    entry.run([*(array.ctypes.data for array in packing.arrays), image.address])
    return image.view(0, size).copy()


def run(
    program: PortableProgram,
    library: Library,
    image: np.ndarray,
    arrays: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
    folder: Path,
) -> None:
    """Link a program to fresh memory, and run it twice."""
    arena, files = SharedArena().part(program.arena_bytes), None
    memory = Block(program.constant_bytes)
    if program.streamed:
        file = unnamed_block(folder, image.size)
        file.view(0, image.size)[:] = image

        def files(start: int) -> tuple[FileBlock, int]:
            return file, start

        keep_constants(program, memory, files)
    else:
        memory.write(0, image)
    linked = link(program, library, memory.address.__add__, arena, files)
    for _ in range(2):
        linked.run([array.ctypes.data for array in (*arrays, *results)])


def arrays_of(graph: Graph, names: Sequence[str]) -> list[np.ndarray]:
    return [RANDOM.standard_normal(graph.types[name].shape).astype("f") for name in names]


def outputs_of(graph: Graph) -> list[np.ndarray]:
    return [np.full(graph.types[name].shape, np.nan, "f") for name in graph.outputs]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more than two iterations be held."""
    hold(monkeypatch)


@pytest.mark.parametrize("name", cases())
def test_a_program_runs_wherever_it_is_linked(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    here = portable(case)
    if case.has:
        assert getattr(here.program, case.has)
    for entry in (here.program, here.packing.program):
        assert max(numbers(entry)) < 2**32, "some number may be an address"
        assert json.loads(json.dumps(plain(entry)))
        assert pickle.loads(pickle.dumps(entry)) == entry
    arrays, wanted = arrays_of(here.graph, here.graph.inputs), outputs_of(here.graph)
    network = CompiledNetwork(OwnedGraph(here.graph), here.budget, case.limit)
    assert network.program == here.program
    network.run([array.ctypes.data for array in (*arrays, *wanted)])
    assert not any(np.isnan(result).any() for result in wanted)
    for _ in range(2):
        image = prepared(here.packing, here.image_bytes, here.library)
        results = outputs_of(here.graph)
        run(here.program, here.library, image, arrays, results, tmp_path)
        for result, expected in zip(results, wanted, strict=True):
            assert np.array_equal(result, expected)


def test_weights_that_changed_are_prepared_anew(tmp_path: Path) -> None:
    here = portable(Case(dense()))
    (x,) = arrays_of(here.graph, here.graph.inputs)
    results = outputs_of(here.graph)
    for factor in (1.0, 0.5):
        sources = [array * np.float32(factor) for array in here.packing.arrays]
        changed = PackProgram(here.packing.program, tuple(sources), here.packing.tables)
        image = prepared(changed, here.image_bytes, here.library)
        run(here.program, here.library, image, [x], results, tmp_path)
        expected = x.astype("d")
        for weights in sources:
            expected = expected @ weights.reshape(160, 160).T.astype("d")
        np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)


_ELSEWHERE = """
import pickle, sys
from pathlib import Path
import numpy as np
from leanconv.codegen.linking import Library, link
from planner.test_portable_program import run
program, objects, image, arrays, results = pickle.loads(Path(sys.argv[1]).read_bytes())
batch = link(objects, [f"k{name}" for name in objects])
library = Library({name: (batch, f"k{name}") for name in objects}, {})
run(program, library, image, arrays, results, Path(sys.argv[2]))
Path(sys.argv[1]).write_bytes(pickle.dumps(results))
"""


@pytest.mark.parametrize("name", ["a loop", "several inputs and outputs"])
def test_a_file_of_it_runs_in_another_process(name: str, tmp_path: Path) -> None:
    here = portable(cases()[name])
    image = prepared(here.packing, here.image_bytes, here.library)
    arrays, wanted = arrays_of(here.graph, here.graph.inputs), outputs_of(here.graph)
    run(here.program, here.library, image, arrays, wanted, tmp_path)
    used = {stage.kernel.form for stage in here.program.stages}  # type: ignore[union-attr]
    objects = {
        digest: compile_text(text, host())
        for digest, text in named_texts(here.kernels).items()
        if digest in used
    }
    assert objects.keys() == used
    given = pickle.dumps((here.program, objects, image, arrays, outputs_of(here.graph)))
    (tmp_path / "file").write_bytes(given)
    tests = Path(__file__).parents[1]
    script = f"import sys; sys.path.insert(0, {str(tests)!r})\n{_ELSEWHERE}"
    command = [sys.executable, "-c", script, str(tmp_path / "file"), str(tmp_path / "cache")]
    subprocess.run(command, check=True, timeout=300)
    results = pickle.loads((tmp_path / "file").read_bytes())
    for result, expected in zip(results, wanted, strict=True):
        assert np.array_equal(result, expected)


def named_texts(kernels: Sequence[Kernel]) -> Mapping[str, str]:
    """The texts of kernels by the names of their forms, each with a function of that name."""
    found = {}
    for kernel in kernels:
        digest = instance_of(kernel, host()).digest
        found[digest] = emitted(kernel, host())[0].replace(f"@{Kernel.NAME}(", f"@k{digest}(", 1)
    return found
