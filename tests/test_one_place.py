"""What is computed in one place: element sizes, roundoffs, output sizes, FLOPs, decompositions.

Each rule reads the source, and is shown to see what it is there for.

`RATCHETS` has numbers that may only fall: a change that makes one larger takes something away
elsewhere, and one that makes it smaller writes the new number into the table. Something new that
users can do may raise them once, by what it takes:

    networks as libraries       3983 lines, 17 modules, 5 of one importer
    gradients, leanconv.torch  10620 lines, 43 modules, 15 of one importer, 3 of them short
    zeros, separable filters    4561 lines, 19 modules, 6 of one importer, 2 of them short
    bytes by twos, LiteRT, first answers, mixed chains  3741 lines, 7 modules, 1 of them short
    bytes by fours, LSTMs of codes, `run` by snapshots  397 lines, 2 modules
    few outputs in planes, `serve` by snapshots, results made when counted  683 lines
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import leanconv
from leanconv.graph.ops import OPS
from leanconv.types import DTYPES

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "leanconv"
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
_SHORT = 60  # lines of a module that could be a part of another
RECORDS = "graph/ops/", "graph/convert/"  # where an operation's record is
_TABLE = 3  # names of operations from which on a display is a table of them
ITEM_BYTES = ("'float16': 2", "'float32': 4", "'float64': 8")


@cache
def trees() -> dict[str, ast.Module]:
    """The modules by their places in the package, read by the first test that asks."""
    return {
        file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of a module's, for the rules that look at each."""
    return tuple(ast.walk(tree))


def outside(find: str, *allowed: str) -> list[str]:
    """Where a rule finds something, but for the modules and folders that are allowed to have it."""
    return [
        f"{name}:{line}"
        for name, tree in trees().items()
        if not name.startswith(allowed)
        for line in RULES[find](tree)
    ]


def element_tables(tree: ast.AST) -> Iterator[int]:
    """Tables from dtypes to their bytes."""
    for node in nodes(tree):
        if isinstance(node, ast.Dict):
            pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if k]
            if any(f"{ast.unparse(k)}: {ast.unparse(v)}" in ITEM_BYTES for k, v in pairs):
                yield node.lineno


def executed_texts(tree: ast.AST) -> Iterator[int]:
    """Calls of `exec` and `eval` with anything but compiled code."""
    for node in nodes(tree):
        called = getattr(getattr(node, "func", None), "id", "")
        if called in ("exec", "eval") and isinstance(node, ast.Call):
            compiled = getattr(getattr(node.args[0], "func", None), "id", "") == "compile"
            yield from [] if compiled else [node.lineno]


def roundoffs(tree: ast.AST) -> Iterator[int]:
    """The powers 2**-24 and 2**-53."""
    powers = [ast.unparse(ast.parse(f"{two}**-{n}")) for two in ("2", "2.0") for n in (24, 53)]
    for node in nodes(tree):
        power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
        if power and ast.unparse(node) in powers:
            yield node.lineno


def dtype_names(tree: ast.AST) -> Iterator[int]:
    """Names of dtypes as text where code compares, looks up or makes something with them."""
    names = {str(dtype) for dtype in DTYPES}
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and node.value in names:
            yield node.lineno


def output_sizes(tree: ast.AST) -> Iterator[int]:
    """Divisions of what is left beside a kernel's extent."""
    for node in nodes(tree):
        divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
        if divides and "effective_extent" in ast.unparse(node):
            yield node.lineno


def kernel_flops(tree: ast.AST) -> Iterator[int]:
    """FLOPs of a convolution's kernel that are counted by hand: two for each product."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("flops", "image_flops"):
            text = ast.unparse(node)
            if "2 *" in text or "prod(" in text:
                yield node.lineno


def divisors(tree: ast.AST) -> Iterator[int]:
    """Imports of `gcd`, which splits strides and dilations."""
    for node in nodes(tree):
        imported = isinstance(node, ast.ImportFrom) and "gcd" in [a.name for a in node.names]
        if imported or (isinstance(node, ast.Attribute) and node.attr == "gcd"):
            yield node.lineno


def specs(tree: ast.AST) -> Iterator[int]:
    """Specs that are made field by field."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "ConvSpec":
            yield node.lineno


def activation_tables(tree: ast.AST) -> Iterator[int]:
    """Tables from operations to kinds of activation and their attributes."""
    for node in nodes(tree):
        if isinstance(node, ast.Dict) and "'LeakyRelu': ('leaky_relu'" in ast.unparse(node):
            yield node.lineno


def locks(tree: ast.AST) -> Iterator[int]:
    """Locks that nobody renews in a forked child."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            ours = name == "Lock" and node.args  # that of `runtime.locks` says for what
            if name in LOCKS and not ours:
                yield node.lineno


def locked_properties(tree: ast.AST) -> Iterator[int]:
    """The standard library's cached properties, which have a lock until Python 3.12."""
    for node in nodes(tree):
        imported = isinstance(node, ast.ImportFrom) and node.module == "functools"
        names = [a.name for a in node.names] if imported else []
        if "cached_property" in (*names, getattr(node, "attr", "")):
            yield node.lineno


def identities(tree: ast.AST) -> Iterator[int]:
    """Calls of `id`: a key of them means nothing elsewhere, or when the object has gone."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "id":
            yield node.lineno


RULES = {
    rule.__name__: rule
    for rule in (
        executed_texts,
        element_tables,
        dtype_names,
        roundoffs,
        output_sizes,
        kernel_flops,
        divisors,
        specs,
        activation_tables,
        locks,
        locked_properties,
        identities,
    )
}
SEEN = {
    "executed_texts": "exec(text, names)",
    "element_tables": "BYTES = {'float32': 4, 'float64': 8}",
    "roundoffs": "U = 2.0**-24",
    "dtype_names": "wide = dtype == 'float64'",
    "output_sizes": "n = (size + pad - effective_extent(kernel, d)) // stride + 1",
    "kernel_flops": "def flops(self):\n    return 2 * self.batch * prod(self.out)",
    "divisors": "from math import gcd",
    "specs": "spec = ConvSpec(batch=1)",
    "locks": "guard = threading.RLock()",
    "locked_properties": "from functools import cached_property",
    "identities": "known = table[id(node)]",
    "activation_tables": "KINDS = {'LeakyRelu': ('leaky_relu', ('alpha',))}",
}


def test_bytes_and_roundoffs_of_elements_are_in_one_table() -> None:
    assert outside("element_tables", "types.py") == []
    assert outside("roundoffs", "types.py") == []


def test_a_type_is_never_asked_for_by_its_name() -> None:
    # What a file may hold that is no type of ours; NumPy's memory for a type that it lacks.
    # The third names the steps of a ladder, of which some are types.
    others = ("graph/onnx_schema.py", "gpu/device/arrays.py", "quantizer/result.py")
    assert outside("dtype_names", "types.py", *others) == []


def test_output_sizes_are_computed_in_spec() -> None:
    assert outside("output_sizes", "spec/", "reference/") == []


def test_flops_of_convolutions_are_computed_in_spec() -> None:
    others = tuple(f"{folder}/" for folder in ("kernels", "gpu", "planner", "runtime", "reference"))
    assert outside("kernel_flops", "spec/conv.py", *others) == []


def test_strides_and_dilations_are_taken_apart_in_one_module() -> None:
    # The second one spreads lines of a page over the sets of a cache; maps of axes have periods.
    # Gradients of weights share tiles out among lines; taps that a stride leaves lie evenly apart.
    known = ("algorithms/decompose.py", "algorithms/unfold/")
    # The numbers of a filter have common divisors, too, and so have dilations that are summed.
    others = ("algorithms/weight_gradient/", "algorithms/common/weight_runs.py", "graph/factors.py")
    sums = "graph/passes/add_convolutions.py"
    allowed = (*known, *others, sums, "graph/fields/", "planner/image_tiles/")
    assert outside("divisors", *allowed) == []


def test_a_spec_is_what_a_user_or_a_conv_node_says() -> None:
    assert outside("specs", "spec/", "reference/layers.py", "operators/conv_node.py") == []


def test_activations_of_operations_are_in_one_table() -> None:
    assert outside("activation_tables") == []


def test_every_lock_is_free_in_a_forked_child() -> None:
    # Forks wait for those of the first row; the pool renews its own, and a child has no workers.
    waited_for = ("forks.py", "codegen/linking.py", "codegen/backend.py")
    unforked = ("server/batching.py", "server/app.py")  # a server has threads, and does not fork
    # A run has a reader of its own, which nobody waits for in a child; so has an image file. What
    # wheels hold a copy of renews its own, too.
    alone = (
        "runtime/locks.py",
        "runtime/pool.py",
        "runtime/segmented_program.py",
        "runtime/shared_library.py",
        "images/tiff.py",
    )
    assert outside("locks", *waited_for, *unforked, *alone) == []
    assert outside("locked_properties", "records.py") == []


# Where objects themselves are meant, and nothing is found by them later.
IDENTITIES = {
    "graph/ir.py": "gives arrays, which have no hash, the numbers that are keys everywhere else",
    "graph/limits.py": "counts the bytes of arrays that are alive",
    "graph/data_dependent.py": "sees whose memory an array of this run is",
    "runtime/arrays.py": "compares an object's class and type in native code",
    "api/": "copies' memos; what two callers hold of one memory",
    "server/": "models that are loaded, and arrays of one request",
}


def test_what_is_kept_is_keyed_by_numbers_and_names() -> None:
    assert outside("identities", *IDENTITIES) == []
    assert [name for name in IDENTITIES if name.endswith(".py") and name not in trees()] == []
    plans = [tree for name, tree in trees().items() if name.startswith("api/cpu_")]
    assert [line for tree in plans for line in identities(tree)] == []


def test_no_text_is_executed() -> None:
    # A KeyboardInterrupt that passes through it ends the process by SIGINT in the end.
    assert outside("executed_texts") == []


def test_each_rule_sees_what_it_is_there_for() -> None:
    assert SEEN.keys() == RULES.keys()
    for name, source in SEEN.items():
        assert list(RULES[name](ast.parse(source))) == [1], name


# -- numbers that may only fall --------------------------------------------------------------
RATCHETS = {
    "lines": 144305,
    "modules": 572,
    "short_modules": 44,
    "modules_of_one_importer": 135,
    "tables_of_operations": 8,
    "modules_of_a_convolution": 165,
    "calls_of_a_kept_convolution": 19,
}


def lines() -> int:
    """Lines of the package."""
    return sum(_lines().values())


def modules() -> int:
    """Its modules."""
    return len(trees())


def short_modules() -> int:
    """Modules of fewer than 60 lines, `__init__` among them."""
    return sum(count < _SHORT for count in _lines().values())


def modules_of_one_importer() -> int:
    """Modules that one other imports, in a function or for types alone, too.

    Those whose names are made at run time are not seen.
    """
    importers = Counter(name for found in _imported().values() for name in found)
    return sum(count == 1 for count in importers.values())


def tables_of_operations() -> int:
    """Tables by the names of operations outside of their records.

    A table is a display (of a dict, set, tuple or list, in another one as well) outside of
    functions that has three or more of the names in `OPS` among its keys or elements. The records
    are `Op` and, of files' operations, `Rule`.
    """
    found = (tree for name, tree in trees().items() if not name.startswith(RECORDS))
    return sum(len(list(operation_tables(tree))) for tree in found)


def modules_of_a_convolution() -> int:
    """Modules of the package that one `conv2d` loads in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", _CONVOLUTION], capture_output=True, text=True, check=True
    )
    return int(result.stdout)


def calls_of_a_kept_convolution() -> int:
    """Python calls into the package by a `conv2d` whose plan is kept, but for comprehensions."""
    x, w = np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)
    count, package = 0, f"{PACKAGE}/"

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        code = frame.f_code  # comprehensions are no calls from Python 3.12 on
        named = code.co_filename.startswith(package) and not code.co_name.startswith("<")
        count += event == "call" and named

    def counted() -> int:
        nonlocal count
        count, before = 0, sys.getprofile()
        sys.setprofile(called)
        try:
            leanconv.conv2d(x, w, padding=1, threads=1)
        finally:
            sys.setprofile(before)
        return count

    return min(counted() for _ in range(6))  # the first plans; one that takes long is cut


_CONVOLUTION = """
import sys
import numpy as np
import leanconv
leanconv.conv2d(np.ones((1, 4, 6, 6), "f"), np.ones((4, 4, 3, 3), "f"), threads=1)
print(sum(name.partition(".")[0] == "leanconv" for name in sys.modules))
"""


@cache
def _lines() -> dict[str, int]:
    return {name: (PACKAGE / name).read_text(encoding="utf-8").count("\n") for name in trees()}


def _imported() -> dict[str, set[str]]:
    """What each module imports of the package, by places."""
    return {name: set(_imports(name, tree)) - {name} for name, tree in trees().items()}


def _imports(name: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            own = [found for each in node.names if (found := _place(f"{node.module}.{each.name}"))]
            yield from own or filter(None, [_place(node.module)])
        elif isinstance(node, ast.Import):
            yield from filter(None, (_place(each.name) for each in node.names))


def _place(module: str) -> str | None:
    """Where a module of the package lies; None of any other."""
    package, _, rest = module.partition(".")
    within = rest.replace(".", "/")
    places = f"{within}.py", f"{within}/__init__.py".lstrip("/")
    return next((p for p in places if package == "leanconv" and p in trees()), None)


def operation_tables(tree: ast.AST) -> Iterator[int]:
    """Displays with names of operations, outside of functions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from operation_tables(node)
    among = tree.keys if isinstance(tree, ast.Dict) else getattr(tree, "elts", ())
    names = (each.value for each in among if isinstance(each, ast.Constant))
    if sum(name in OPS for name in names) >= _TABLE:
        yield getattr(tree, "lineno", 0)


COUNTS: tuple[Callable[[], int], ...] = (
    lines,
    modules,
    short_modules,
    modules_of_one_importer,
    tables_of_operations,
    modules_of_a_convolution,
    calls_of_a_kept_convolution,
)


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.__name__)
def test_what_may_only_fall_has_not_risen(count: Callable[[], int]) -> None:
    most, found = RATCHETS[count.__name__], count()
    what = f"{count.__name__}: {found}, in RATCHETS {most}"
    assert found <= most, f"{what}; take away as much elsewhere"
    assert found >= most, f"{what}; write the lower number into the table"


def test_tables_of_operations_are_seen() -> None:
    source = "A = {'Add': 1, 'Mul': 2, 'Sub': 3}\nB = [('Add', 'Mul', 'x'), {'Add', 'Mul', 'Sub'}]"
    inside = "def f(): return 'Add', 'Mul', 'Sub'"
    assert list(operation_tables(ast.parse(f"{source}\n{inside}"))) == [1, 2]
    assert RATCHETS.keys() == {count.__name__ for count in COUNTS}
