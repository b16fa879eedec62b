"""What is computed in one place: element sizes, roundoffs, output sizes, FLOPs, decompositions.

Each rule reads the source, and is shown to see what it is there for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from leanconv.types import DTYPES

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "leanconv"
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
ITEM_BYTES = ("'float16': 2", "'float32': 4", "'float64': 8")


@cache
def trees() -> dict[str, ast.Module]:
    """The modules by their places in the package, read by the first test that asks."""
    return {
        file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    }


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
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if k]
            if any(f"{ast.unparse(k)}: {ast.unparse(v)}" in ITEM_BYTES for k, v in pairs):
                yield node.lineno


def executed_texts(tree: ast.AST) -> Iterator[int]:
    """Calls of `exec` and `eval` with anything but compiled code."""
    for node in ast.walk(tree):
        called = getattr(getattr(node, "func", None), "id", "")
        if called in ("exec", "eval") and isinstance(node, ast.Call):
            compiled = getattr(getattr(node.args[0], "func", None), "id", "") == "compile"
            yield from [] if compiled else [node.lineno]


def roundoffs(tree: ast.AST) -> Iterator[int]:
    """The powers 2**-24 and 2**-53."""
    powers = [ast.unparse(ast.parse(f"{two}**-{n}")) for two in ("2", "2.0") for n in (24, 53)]
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and ast.unparse(node) in powers:
            yield node.lineno


def dtype_names(tree: ast.AST) -> Iterator[int]:
    """Names of dtypes as text where code compares, looks up or makes something with them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in {str(dtype) for dtype in DTYPES}:
            yield node.lineno


def output_sizes(tree: ast.AST) -> Iterator[int]:
    """Divisions of what is left beside a kernel's extent."""
    for node in ast.walk(tree):
        divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
        if divides and "effective_extent" in ast.unparse(node):
            yield node.lineno


def kernel_flops(tree: ast.AST) -> Iterator[int]:
    """FLOPs of a convolution's kernel that are counted by hand: two for each product."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("flops", "image_flops"):
            text = ast.unparse(node)
            if "2 *" in text or "prod(" in text:
                yield node.lineno


def divisors(tree: ast.AST) -> Iterator[int]:
    """Imports of `gcd`, which splits strides and dilations."""
    for node in ast.walk(tree):
        imported = isinstance(node, ast.ImportFrom) and "gcd" in [a.name for a in node.names]
        if imported or (isinstance(node, ast.Attribute) and node.attr == "gcd"):
            yield node.lineno


def specs(tree: ast.AST) -> Iterator[int]:
    """Specs that are made field by field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "ConvSpec":
            yield node.lineno


def activation_tables(tree: ast.AST) -> Iterator[int]:
    """Tables from operations to kinds of activation and their attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and "'LeakyRelu': ('leaky_relu'" in ast.unparse(node):
            yield node.lineno


def locks(tree: ast.AST) -> Iterator[int]:
    """Locks that nobody renews in a forked child."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            ours = name == "Lock" and node.args  # that of `runtime.locks` says for what
            if name in LOCKS and not ours:
                yield node.lineno


def locked_properties(tree: ast.AST) -> Iterator[int]:
    """The standard library's cached properties, which have a lock until Python 3.12."""
    for node in ast.walk(tree):
        imported = isinstance(node, ast.ImportFrom) and node.module == "functools"
        names = [a.name for a in node.names] if imported else []
        if "cached_property" in (*names, getattr(node, "attr", "")):
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
    "activation_tables": "KINDS = {'LeakyRelu': ('leaky_relu', ('alpha',))}",
}


def test_bytes_and_roundoffs_of_elements_are_in_one_table() -> None:
    assert outside("element_tables", "types/") == []
    assert outside("roundoffs", "types/") == []


def test_a_type_is_never_asked_for_by_its_name() -> None:
    # What a file may hold that is no type of ours; NumPy's memory for a type that it lacks.
    # The third names the steps of a ladder, of which some are types.
    others = ("graph/onnx_schema.py", "gpu/device/dlpack.py", "quantizer/rungs.py")
    assert outside("dtype_names", "types/", *others) == []


def test_output_sizes_are_computed_in_spec() -> None:
    assert outside("output_sizes", "spec/", "reference/") == []


def test_flops_of_convolutions_are_computed_in_spec() -> None:
    others = tuple(f"{folder}/" for folder in ("kernels", "gpu", "planner", "runtime", "reference"))
    assert outside("kernel_flops", "spec/amounts.py", *others) == []


def test_strides_and_dilations_are_taken_apart_in_one_module() -> None:
    # The third one spreads the lines of a page over the sets of a cache; maps of axes have periods.
    known = ("algorithms/decompose.py", "reference/decompose.py", "algorithms/unfold/")
    allowed = (*known, "graph/fields/", "planner/tiles/")
    assert outside("divisors", *allowed) == []


def test_a_spec_is_what_a_user_or_a_conv_node_says() -> None:
    operators = "operators/convolution.py", "operators/quantised_node.py"
    assert outside("specs", "spec/", "reference/layers.py", *operators) == []


def test_activations_of_operations_are_in_one_table() -> None:
    assert outside("activation_tables", "graph/activations.py") == []


def test_every_lock_is_free_in_a_forked_child() -> None:
    # Forks wait for those of the first row; the pool renews its own, and a child has no workers.
    waited_for = ("forks.py", "codegen/linking.py", "codegen/backend.py")
    unforked = ("server/batching.py", "server/views.py")  # a server has threads, and does not fork
    # A run has a reader of its own, which nobody waits for in a child; so has an image file.
    alone = ("runtime/locks.py", "runtime/pool.py", "runtime/stream_program.py", "images/tiff.py")
    assert outside("locks", *waited_for, *unforked, *alone) == []
    assert outside("locked_properties", "records.py") == []


def test_no_text_is_executed() -> None:
    # A KeyboardInterrupt that passes through it ends the process by SIGINT in the end.
    assert outside("executed_texts") == []


def test_each_rule_sees_what_it_is_there_for() -> None:
    assert SEEN.keys() == RULES.keys()
    for name, source in SEEN.items():
        assert list(RULES[name](ast.parse(source))) == [1], name
