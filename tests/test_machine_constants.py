"""Numbers that encode a machine are fields of `Costs`: no module outside `target` has any.

What is looked for are floats, alone or in tuples and dictionaries, that a module assigns, and
floats inside the functions that estimate costs. Counts and bytes are integers and may stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "leanconv"

# Modules whose functions estimate times: there, floats inside functions are looked for, too.
ESTIMATING = ("algorithms", "operators", "codegen/tiling.py", "planner/node_costs.py")
PLAIN = (0.0, 1.0)

# Everything that is allowed, as `folder:name`, by the reason why it is no machine's.
REASONS: dict[str, tuple[str, ...]] = {
    "the size of a method's chunks, relative to the record's": (
        "algorithms/depthwise:_CHUNKS",
        "algorithms/direct:_CHUNKS",
        "algorithms/planar:_CHUNKS",
    ),
    "what a method's loop makes of a rate or cost of the record": (
        "algorithms/sparse:_LOADS _FMAS _STREAM _COPY _READ _L2_BESIDE",
        "algorithms/sparse:_STEP _PERMUTE _GATHER _ELEMENT _SLICE",
        "algorithms/sparse:_BEGIN _MARGIN",
        "algorithms/separable:_STRIP _ROW _LINE _STORE _DISPLACED",
        "algorithms/separable:_DEPTH _PARTED",
        "algorithms/separable:_OVER_MODEL _SEVERAL",
        "algorithms/direct:_HALF_STEPS",
        "algorithms/depthwise:_STORE_SHARE",
        "algorithms/direct:_PREFETCHED_SHARE",
        "algorithms/direct:_STORE_SHARE",
        "algorithms/fused:_BESIDE_FMA",
        "algorithms/unfold:_SQUARES",
        "algorithms/fused:_PARTIAL_SUMS",
        "algorithms/winograd:_U_RATE",
    ),
    "the share of a cache that a method gives to one of its operands": (
        "algorithms/sparse:_L1_SHARE _L2_SHARE",
        "algorithms/direct:_INSIDE_SHARE",
        "algorithms/direct:_INSIDE_IMAGES",
        "algorithms/direct:_PANEL_SHARE _COLUMN_VECTORS",
        "algorithms/planar:_L1_SHARE",
        "algorithms/weight_gradient:_L1_SHARE",
        "algorithms/weight_gradient:_L2_SHARE",
        "algorithms/weight_gradient:_SHOWN",
        "algorithms/direct:_RESIDUAL_SHARE",
        "algorithms/winograd:_SCRATCH_SHARE",
    ),
    "how much slower one form of a method is than another, or must be to be passed over": (
        "algorithms/sparse:_MOST_ENTRIES _MOST_TOGETHER",
        "algorithms/sparse:_COPIES",
        "algorithms/planar:_UNPACKED _UNPACKED_DEEP _DEEP",
        "algorithms/planar:_NARROW _NARROW_LARGE",
        "algorithms/planar:_UNALIGNED",
        "algorithms:_GOOD",
        "algorithms/winograd:_STAGES_HANDICAP",
        "algorithms/winograd:_NARROW_EDGES",
        "api:_ALIKE",
    ),
    "from which part of weights on zeros and factors matter, and what rounding leaves of these": (
        "graph/passes:_SPARSE MAYBE_SPARSE",
        "graph:LEAST",
        "graph:_CLASS",
        "graph:_LARGEST",
        "graph:_LEAST_PART",
        "graph:_PART",
        "graph:_ROUNDED",
        "graph:_SAMPLED",
        "graph:_THINNED",
        "graph:_WHOLE",
    ),
    "when a stream counts as one from L3": ("runtime:_HELD",),
    "an order of tiles": ("algorithms/winograd:_SHARES",),
    "how far rounding may put a bound above what it bounds": (
        "algorithms/fft:_ROUNDED",
        "algorithms/winograd:_ROUNDED",
    ),
    "how codes of a quantised network are chosen and what is scored": (
        "quantizer:_CUT",
        "quantizer:_DAMPING",
        "quantizer:_FINE",
        "quantizer:_INT32",
        "quantizer:_LARGEST",
        "quantizer:_LEAST_SCALE",
        "quantizer:_LIKELY",
        "quantizer:_POWERS",
        "quantizer:_SHARES",
        "quantizer:_SHRUNK",
        "quantizer:_UNBOUNDED",
        "quantizer:_WORTH",
    ),
    "what tuning measures and prefers": (
        "planner:_DROP",
        "planner:_FACTOR",
        "planner:_MARGIN",
    ),
    "when two threads are taken for halves of one core": (
        "cli/engines:_APART",
        "runtime:_CLEAN",
        "runtime:_DRIFT",
        "runtime:_WORSE",
    ),
    "roundoff, and errors expected or accepted": (
        "algorithms/separable:_candidate()",
        "api:_ROUNDOFFS",
        "planner:NORMALISED",
        "algorithms/fft:error_of()",
        "algorithms/fft:scale()",
        "algorithms:_DEFAULT_ERROR",
        "algorithms:_HALF_ERROR",
        "algorithms:_WEIGHTS",
        "algorithms:_FACTORS",
        "algorithms:walk_steps()",
        "algorithms:LARGEST",
        "algorithms:_MARGIN",
        "algorithms:_SMALL",
        "algorithms:losses_of_sums()",
        "algorithms/winograd:_AIM",
        "algorithms/winograd:ADDED",
        "api:_ANY_ERROR",
        "api:_HARDER",
        "cli:_SUM_TOLERANCE",
        "cli:_USELESS",
        "cli:LARGEST_DIFFERENCE",
        "cli/engines:INACCURATE",
        "gpu:BRAIN",
        "gpu:FP16X3",
        "gpu:HALF",
        "gpu:TF32",
        "gpu:TF32X3",
        "graph/passes:_TOLERANCE _LEAST_TOLERANCE",
        "operators:LAYER_SHARE",
        "operators:_NETWORK_ERROR",
        "leanconv:BOOL BOOL BOOL BOOL",
        "operators:within()",
        "planner:_ERROR_GRAIN",
        "planner:_MOST",
        "planner:ERROR_GROWTH _TRANSFORMED_ERROR_GROWTH",
        "winograd:_PEAK_2D _PEAK_2D_PARTS _PEAK _FEW",
        "winograd:_WEIGHTS",
        "graph/ops:_TIE",
    ),
    "how much larger packing makes weights that a library packs when it starts": (
        "planner:_INFLATED",
    ),
    "mathematics: coefficients, neutral elements, exact tables": (
        "codegen:_REBIASED",
        "algorithms/fft:_rows_matrix()",
        "codegen:_ASIN",
        "codegen:_INTEGERS_FROM",
        "codegen:_ATAN",
        "codegen:_COS",
        "codegen:_SIN",
        "codegen:_HALF_PI",
        "codegen:_TAN_PI_8",
        "codegen:_FAR",
        "codegen:_LN2",
        "codegen:_ONE_IS_LOST",
        "codegen:_LARGE",
        "codegen:_TO_INTEGER",
        "codegen:_DOUBLE",
        "codegen:_FLOAT",
        "codegen:_LOG2_E",
        "graph/convert:_EACH",
        "graph/convert:_SELU _OLD_SELU",
        "graph/convert:_WINDOWS",
        "graph/ops:BINARY",
        "graph/ops:_A",
        "graph/ops:FARTHEST",
        "graph/ops:GATE_FUNCTIONS",
        "graph/ops:NEUTRAL",
        "kernels:_A",
        "kernels:_MOST_SCALE",
        "kernels:_NEUTRAL",
        "kernels:_POWERS",
        "spec:KINDS",
        "spec:_SIXTH",
        "winograd:TABLE",
    ),
    "the range of fp16, which scaled inputs and weights are to fill": ("gpu/lowering:LEAST_SUM",),
    "GPUs have tables of their own, beside the tiles that they are about": (
        "gpu/lowering:_TF32",
        "gpu/lowering:_SPLIT",
        "gpu/lowering:_SPLIT_90",
        "gpu/lowering:_HALF",
        "gpu/lowering:_HALF_90",
        "gpu/lowering:_NARROW",
        "gpu/lowering:_NARROW_8",
        "gpu/lowering:_BOXES_TF32",
        "gpu/lowering:_BOXES_LONG",
        "gpu/lowering:_BOXES_SHORT",
        "gpu/lowering:_STREAM _STREAM_8",
        "gpu/lowering:_STREAM_COPIED",
        "gpu/lowering:_WORTH",
        "gpu:PRESETS",
    ),
    "pictures and terminals": (
        "cli:_BUSY_CPUS",
        "cli:_IMAGENET",
        "cli:_OVERLAP",
        "cli:PRESETS",
        "cli:_RANGES",
        "cli:PATIENCE_S",
    ),
}
ALLOWED = [place for places in REASONS.values() for place in places]


def _floats(node: ast.expr) -> Iterator[float]:
    """Floats of an expression, those in lambdas apart; quotients of numbers are floats."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        numbers = [n for n in (node.left, node.right) if isinstance(n, ast.Constant)]
        if all(isinstance(n.value, int) for n in numbers) and len(numbers) == 2:
            yield numbers[0].value / numbers[1].value
    for child in ast.iter_child_nodes(node):
        expression = child.value if isinstance(child, ast.keyword) else child
        if isinstance(expression, ast.expr):
            yield from _floats(expression)


def constants(source: str) -> dict[str, int]:
    """Names to which a module assigns floats, with the line."""
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(True for _ in _floats(node.value)):
            names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            found[" ".join(names)] = node.lineno
    return found


def literals(source: str) -> dict[str, int]:
    """Functions that contain floats other than 0 and 1, with the line."""
    return {
        f"{function.name}()": node.lineno
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Constant)
        if isinstance(node.value, float) and node.value not in PLAIN
    }


@cache
def found() -> dict[str, str]:
    """All floats that are looked for, as `folder:name`, with module and line."""
    places: dict[str, str] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = file.relative_to(PACKAGE).as_posix()
        if module.startswith("target/"):
            continue
        source = file.read_text(encoding="utf-8")
        names = constants(source)
        if module.startswith(ESTIMATING):
            names |= literals(source)
        folder = module.rpartition("/")[0] or "leanconv"
        places |= {f"{folder}:{name}": f"{module}:{line}" for name, line in names.items()}
    return places


def test_no_float_outside_the_record_of_costs_is_a_machine_s() -> None:
    unknown = {f"{name} ({place})" for name, place in found().items() if name not in ALLOWED}
    assert unknown == set(), "make it a field of target/costs.py, or name it above under a reason"


def test_nothing_is_allowed_that_is_not_there() -> None:
    assert len(ALLOWED) == len(set(ALLOWED))
    assert set(ALLOWED) - set(found()) == set()


def test_floats_are_seen() -> None:
    assert constants("A = 1.5\nB = {'x': (2, 3e-5)}\nC: float = 1 / 3\n_D, E = 4, 2.0\nF = 7") == {
        "A": 1,
        "B": 2,
        "C": 3,
        "_D E": 4,
    }
    assert constants("A = lambda x: 1.5 * x\nB = ROOT / 'x'\nC = 2**-24") == {}
    assert literals("def f(x):\n    return 0.5 * x + 0.0\ndef g(x):\n    return x * 2") == {
        "f()": 2
    }
