"""One compiled form for all sizes: what is shared, what is not, and that the bits stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.depthwise.algorithm import depthwise_kernel
from leanconv.algorithms.depthwise.kernel import DepthwiseConv
from leanconv.algorithms.fused.kernel import FusedChain, SumOfParts
from leanconv.codegen.emitter import Function
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.kernels.copy import Copy
from leanconv.kernels.copy_plan import StridedBox, copy_tasks, reorder
from leanconv.kernels.elementwise import Elementwise
from leanconv.kernels.expression import Step
from leanconv.kernels.pool import Pool
from leanconv.records import dataclass
from leanconv.spec import ConvSpec
from leanconv.spec.format import NHWC, Format
from leanconv.symbolic import Extent, NeedsNumberError, Scalars, Symbol, Trace, guarded, least, most
from leanconv.target import PRESETS, Target
from leanconv.types import FLOAT32, FLOAT64
from support.block_chains import Block, Runner
from support.forms import constant, form_of, same_bits, shared
from support.kernel_runner import run_kernel
from support.packing import packed_weights
from support.small_kernels import conv_kernel, problem


def fitting(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers for all operands of an elementwise kernel, NaN for the result."""
    generator = np.random.default_rng(seed)
    size = int(np.prod(kernel.extents))  # type: ignore[attr-defined]
    arrays = [generator.integers(-4, 5, size).astype("f4") for _ in kernel.operands]
    arrays[-1][:] = np.nan
    return arrays


def add(*extents: int) -> Elementwise:
    after = tuple(int(np.prod(extents[i + 1 :])) for i in range(len(extents)))
    return Elementwise(
        FLOAT32, extents, (after, after), (0.5,), (Step("Add", (0, 1)), Step("Mul", (3, 2)))
    )


def per_plane(*extents: int) -> Elementwise:
    """As `add`, with one row of the second operand for each plane."""
    kernel = add(*extents)
    return replace(kernel, strides=(kernel.strides[0], (extents[-1], 0, 1)))


# -- symbols -------------------------------------------------------------------------------
def symbol(value: float = 12) -> Symbol:
    return Trace().variable(0, value)


@pytest.mark.parametrize(
    ("make", "text", "value"),
    [
        (lambda n: n + 3, "v[0] + 3", 15),
        (lambda n: 3 - n, "3 - v[0]", -9),
        (lambda n: -(-n // 5), "-(-v[0] // 5)", 3),
        (lambda n: divmod(n, 5)[1], "v[0] % 5", 2),
        (lambda n: 100 // n % n, "100 // v[0] % v[0]", 8),
        (lambda n: n * 1 + 0 - 0, "v[0]", 12),
        (lambda n: (n + 2 - 3) // 1 + 1, "v[0]", 12),
        (lambda n: 1 - (n - 1), "1 - (v[0] - 1)", -10),
    ],
)
def test_arithmetic_gives_expressions(make: Callable[[Any], Any], text: str, value: int) -> None:
    made = make(symbol())
    assert (made.text, made.value) == (text, value)
    assert eval(text, {"v": (12,)}) == value
    assert not made.trace.guards


def test_what_steers_the_generator_becomes_a_guard() -> None:
    n = symbol()
    assert n > 3
    assert list(range(n % 5)) == [0, 1]
    assert n // 4 == 3
    assert not n < 3
    assert n + 1 == n + 1
    assert n - n == 0
    assert {guard.text: answer for guard, answer in n.trace.guards.items()} == {
        "v[0] > 3": True,
        "v[0] % 5": 2,
        "v[0] // 4 == 3": True,
        "v[0] < 3": False,
    }


def test_multiples_share_a_word() -> None:
    e, n = Function("kernel"), symbol()
    assert str(e.const("i64", n)) == "i64 %word0"
    assert str(e.const("i64", n * 2 * 3)) != "i64 %word0"
    assert [(word.text, kind) for word, kind in n.trace.words] == [("v[0]", "i64")]


@pytest.mark.parametrize("use", [hash, str, lambda n: f"{n}", lru_cache(lambda n: n)])
def test_a_symbol_is_no_plain_number(use: Callable[[Any], object]) -> None:
    with pytest.raises(NeedsNumberError):
        use(symbol())
    with pytest.raises(TypeError):
        symbol() + "x"


@pytest.mark.parametrize("use", [lambda n: n * 0.5, lambda n: 0.5 + n, lambda n: 2.0 - n])
def test_arithmetic_with_floats_needs_the_number(use: Callable[[Any], object]) -> None:
    with pytest.raises(NeedsNumberError, match="arithmetic with floats"):
        use(symbol())


# -- forms ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Counted(Kernel):
    """y[i] = factor · x[i] for `count` numbers, at least one."""

    VARIES = True

    count: Extent
    factors: Scalars
    dtype: str = FLOAT32

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 1

    def emit(self, target: Target) -> str:
        element = {FLOAT32: "float", FLOAT64: "double"}[self.dtype]
        e = Function(self.NAME)
        x, y = e.pointer(0, element), e.pointer(1, element)
        with e.chunks(1), e.loop("i", self.count) as i:
            for factor in self.factors:
                e.store(e.load(x.at(i)) * e.const(element, factor), y.at(i))
        return e.finish()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_one_form_computes_all_counts_and_factors(dtype: str) -> None:
    forms = set()
    for count, factor in ((2, 0.1), (7, -3.5), (1000, 1e30), (3, -0.0)):
        kernel = Counted(count, (factor,), dtype)
        x = np.arange(count, dtype=dtype)
        found = run_kernel(kernel, x, x * np.nan)
        np.testing.assert_array_equal(found, x * np.array(factor, dtype))
        assert not factor or (np.signbit(found[1:]) == (factor < 0)).all()
        forms.add(form_of(kernel, host()))
    assert len(forms) == 1


def test_extents_one_and_zero_and_other_fields_have_forms_of_their_own() -> None:
    kernels = [
        Counted(5, (2.0,)),
        Counted(1, (2.0,)),
        Counted(5, (2.0, 2.0)),
        Counted(5, (2.0,), FLOAT64),
    ]
    assert len({form_of(kernel, host()) for kernel in kernels}) == len(kernels)
    targets = PRESETS["haswell"], PRESETS["znver4"]
    assert len({form_of(kernels[0], target) for target in targets}) == 2


def test_numbers_that_are_not_finite_stay_in_the_code() -> None:
    for factor in (np.inf, -np.inf, np.nan):
        x = np.ones(5, "f4")
        found = run_kernel(Counted(5, (float(factor),)), x, x * np.nan)
        np.testing.assert_array_equal(found, x * np.float32(factor))


def test_a_form_does_not_serve_where_a_guard_answers_otherwise() -> None:
    one, many = form_of(add(2, 3), host()), form_of(add(2, 67), host())
    assert one is not many
    assert one.at((2, 67, 67, 1, 67, 1)) is None


def test_elementwise_kernels_of_all_sizes_share_forms() -> None:
    assert shared(add(size) for size in (2, 7, 8, 9, 64, 67, 69, 1003, 16384, 16385, 40001, 70016))
    assert shared(add(size, 72) for size in (2, 3, 200, 227, 228, 229, 1000))
    planes = [(2, 3, 8), (30, 48, 8), (30, 2250, 8), (2049, 2, 8), (3, 40000, 8)]
    assert shared(per_plane(*extents) for extents in planes)
    lanes = host().lanes(FLOAT32)
    assert shared(add(3, size) for size in (2 * lanes, 4 * lanes))
    assert shared(replace(add(67), numbers=(factor,)) for factor in (0.25, 3.0))


@pytest.mark.parametrize(
    "kernel",
    [
        *(add(count) for count in (2, 5, 8, 9, 67, 16384, 16385, 40001)),
        *(add(*extents) for extents in ((3, 67), (5, 3), (300, 72), (3, 20001))),
        *(per_plane(*extents) for extents in ((30, 48, 8), (3, 2250, 8), (2050, 2, 8))),
    ],
)
def test_elementwise_words_give_the_bits_of_constants(kernel: Elementwise) -> None:
    arrays = fitting(kernel)
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def unwritten(count: int) -> np.ndarray:
    return np.full(count, np.nan, np.float32)


def depthwise(height: int, width: int, batch: int, blocked: bool) -> DepthwiseConv:
    text = f"mb{batch}g40ic40ih{height}iw{width}oc40oh{height}ow{width}kh3ph1"
    given = problem(text, host(), blocked)
    if not blocked:
        access = Access.of_format((batch, 40, height, width), NHWC)
        given = with_conv(given, x=access, y=access)
    return replace(depthwise_kernel(given, host()), columns=5)


@pytest.mark.parametrize("blocked", [True, False])
def test_depthwise_convolutions_of_equal_remainders_share_a_form(blocked: bool) -> None:
    sizes = (30, 23, 2), (30, 48, 3), (17, 33, 5)
    assert shared(replace(depthwise(*size, blocked), rows=4) for size in sizes)


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("width", [3, 5, 6, 11, 24])
def test_depthwise_words_give_the_bits_of_constants(width: int, blocked: bool) -> None:
    kernel = depthwise(7, width, 2, blocked)
    w = packed_weights(kernel, numbers(40 * 9).reshape(40, 1, 1, 3, 3))
    x, y = numbers(kernel.conv.x.image * 2, width), unwritten(kernel.conv.y.image * 2)
    same_bits(kernel, x, w, y)


def test_sums_of_parts_share_forms_and_give_the_bits_of_constants() -> None:
    lanes = host().lanes(FLOAT32)

    def added(batch: int, blocks: int, pixels: int) -> SumOfParts:
        return SumOfParts(3, batch, blocks, pixels, FLOAT32, lanes, Epilogue(bias=True))

    assert shared(added(2, 3, pixels) for pixels in (1, 2, 3, 4, 9, 49, 50, 51, 52))
    assert shared(added(*size) for size in ((2, 3, 9), (5, 1, 49)))
    for size in ((2, 3, 9), (1, 2, 7), (3, 1, 3), (2, 1, 1), (1, 4, 8)):
        count = int(np.prod(size)) * lanes
        same_bits(added(*size), numbers(3 * count), numbers(size[1] * lanes, 1), unwritten(count))


@pytest.mark.parametrize("blocked", [True, False])
def test_direct_convolutions_of_equal_remainders_share_a_form(blocked: bool) -> None:
    texts = [f"ic16ih{h}iw{w}oc16oh{h}ow{w}kh3ph1" for h, w in ((30, 30), (34, 48), (31, 66))]
    kernels = [conv_kernel(text, host(), blocked) for text in texts]
    kernels = [replace(kernel, tile=Tile(6, 1), fetch=False) for kernel in kernels]
    assert shared(kernels)
    assert shared(with_conv(kernels[0], batch=batch) for batch in (2, 5))


@pytest.mark.drawn
@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("width", [5, 6, 7, 12, 13, 30])
def test_direct_words_give_the_bits_of_constants(width: int, blocked: bool) -> None:
    text = f"mb2ic16ih7iw{width}oc24oh7ow{width}kh3ph1"
    kernel = replace(conv_kernel(text, host(), blocked), tile=Tile(6, 1))
    generator = np.random.default_rng(width)
    w = generator.standard_normal(ConvSpec.parse(text).weight_shape, np.float32)
    x = generator.standard_normal(kernel.conv.x.image * kernel.conv.batch, np.float32)
    y = np.full(kernel.conv.y.image * kernel.conv.batch, np.nan, np.float32)
    arrays = x, packed_weights(kernel, w), y
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )


def fused(block: Block, kind: str) -> FusedChain:
    """A block's kernel of one kind, of tiles of six columns, the one of fewest rows a step."""
    runner = Runner(block)
    found = [runner.lower(c).calls[0].kernel for c in runner.choices() if c.algorithm == kind]
    kernels = [kernel for kernel in found if isinstance(kernel, FusedChain)]
    kernel = min(kernels, key=lambda kernel: (kernel.block.step, kernel.parts))
    parts = kernel.block
    expand = parts.expand and replace(parts.expand, tile=Tile(6, 1))
    projects = tuple(replace(project, tile=Tile(6, 1)) for project in parts.projects)
    depthwise = replace(parts.depthwise, columns=6)
    return replace(
        kernel, block=replace(parts, expand=expand, depthwise=depthwise, projects=projects)
    )


BLOCK = Block(24, 48, 24, (9, 15), residual=True)
WITHOUT_EXPANSION = Block(32, 0, 24, (9, 15))
STRIDED = Block(3, 32, 24, (20, 15), first=(3, 2), kernel=5, stride=2, pads=(2, 2, 2, 2), batch=2)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("block", "kind"), [(BLOCK, "rows"), (BLOCK, "panel"), (WITHOUT_EXPANSION, "panel")]
)
def test_blocks_of_equal_remainders_share_a_form(block: Block, kind: str, batch: int) -> None:
    sizes = (9, 20), (10, 26), (31, 62), (100, 320)
    assert shared(fused(replace(block, batch=batch, size=size), kind) for size in sizes)


@pytest.mark.drawn
@pytest.mark.parametrize("width", [5, 6, 13, 15, 24])
@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (BLOCK, "rows"),
        (BLOCK, "panel"),
        (replace(BLOCK, inputs=64, inner=64, outputs=64), "split"),
        (WITHOUT_EXPANSION, "panel"),
        (STRIDED, "rows"),
        (STRIDED, "panel"),
    ],
)
def test_blocks_words_give_the_bits_of_constants(block: Block, kind: str, width: int) -> None:
    kernel = fused(replace(block, size=(block.size[0], width)), kind)
    generator = np.random.default_rng(width)
    parts, first = kernel.block, kernel.block.expand or kernel.block.depthwise
    sizes = {"x": first.conv.x.image, "residual": parts.projects[0].conv.y.image}
    sizes = {name: kernel.batch * size for name, size in sizes.items()}
    sizes |= {name: size // 4 for name, size in kernel.constant_bytes.items()}
    arrays = [generator.standard_normal(sizes[name], np.float32) for name in kernel.operands[:-1]]
    result = kernel.parts * kernel.batch * parts.projects[0].conv.y.image
    arrays.append(np.full(result, np.nan, np.float32))
    expected = run_kernel(constant(kernel), *arrays)
    np.testing.assert_array_equal(run_kernel(kernel, *arrays), expected)
    assert not np.isnan(expected).all()


@pytest.mark.parametrize(("source", "result"), [(0, 8), (8, 0), (8, 8)])
def test_reorders_of_all_sizes_share_a_form(source: int, result: int) -> None:
    formats = Format(source), Format(result)
    shapes = [(2, 24, 17, 19), (3, 24, 20, 31), (5, 24, 23, 22)]
    assert shared(reorder(shape, FLOAT32, *formats) for shape in shapes)


@pytest.mark.parametrize(("source", "result"), [(0, 8), (8, 0)])
def test_reorders_in_many_chunks_share_a_form_whatever_is_left_over(
    source: int, result: int
) -> None:
    sizes = (220, 221, 257, 300, 331, 400, 479, 513, 640)
    formats = Format(source), Format(result)
    assert shared(reorder((1, 24, size, size + 1), FLOAT32, *formats) for size in sizes)


@pytest.mark.parametrize(("source", "result"), [(0, 8), (8, 0), (8, 8)])
@pytest.mark.parametrize("shape", [(1, 5, 3, 3), (2, 21, 5, 7), (2, 8, 17, 19), (1, 16, 97, 113)])
def test_reorder_words_give_the_bits_of_constants(
    source: int, result: int, shape: tuple[int, ...]
) -> None:
    kernel = reorder(shape, FLOAT32, Format(source), Format(result))
    x = np.arange(Format(source).elements(shape), dtype="f4")
    arrays = x, np.full(Format(result).elements(shape), np.nan, "f4")
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )


@pytest.mark.drawn
@pytest.mark.parametrize("count", [*range(2, 40), 64, 65, 79, 80, 130, 300])
@pytest.mark.parametrize("step", [0, 1, -1, 3])
def test_copies_of_runs_give_the_bits_of_constants(count: int, step: int) -> None:
    start = (count - 1) * -step if step < 0 else 0
    box = StridedBox(0, (2, count), (7, step), (count + 5, 1), start, 1)
    tasks = (
        *copy_tasks(box, FLOAT32),
        *copy_tasks(replace(box, operand=-1, result=700), FLOAT32),
    )
    kernel = Copy(FLOAT32, 1, tasks)
    arrays = np.arange(2000, dtype="f4"), np.full(1400, np.nan, "f4")
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )


def pool(planes: int, height: int, width: int, average: bool) -> Pool:
    """Windows of 3x3 at stride 2, one cell of padding, which a mean counts."""
    out = (1, (height - 1) // 2 + 1, (width - 1) // 2 + 1)
    window = Window((1, height, width), out, (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1))
    counted = ((0, 0), (1, 1), (1, 1)) if average else ()
    return Pool(FLOAT32, 8, planes, window, average, counted)


@pytest.mark.parametrize("average", [True, False])
def test_pools_of_equal_remainders_share_a_form(average: bool) -> None:
    assert shared(pool(n, h, w, average) for n, h, w in ((2, 20, 32), (3, 40, 48), (4, 31, 64)))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("size", [(2, 2), (3, 4), (9, 15), (16, 17)])
def test_pools_words_give_the_bits_of_constants(size: tuple[int, int], average: bool) -> None:
    kernel = pool(3, *size, average)
    x = np.random.default_rng(0).standard_normal(3 * 8 * size[0] * size[1]).astype("f4")
    arrays = x, np.full(3 * 8 * kernel.window.out[1] * kernel.window.out[2], np.nan, "f4")
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )


def test_expressions_are_found_for_other_values_as_their_texts_say() -> None:
    trace = Trace()
    x, y = (trace.variable(index, value) for index, value in enumerate((20, 7)))
    made = [
        least(x * 3 - 5, most(y, 9), 1000) // 4,
        (-x) % y + (x + 2 - 3) * (100 // y) - (x + 1 - 1),
        divmod(x, 6)[1] + abs(x - y),
        x / y,
    ]
    assert x > y
    assert x != 3 * y
    for values in [(20, 7), (3, 11), (1, 1), (977, 64)]:
        asked = [*(symbol.expression for symbol in made), *trace.guards]
        wanted = tuple(eval(each.text, {"v": values}) for each in asked)
        assert guarded({}, asked)(values) == wanted, values
