"""Chains of convolutions in one pass: every form, against float64, integers, and bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.fused.forms import build, form_of_size
from leanconv.algorithms.fused.kernel import FusedChain, SumOfParts
from leanconv.errors import SpecError
from leanconv.operators.chain_layers import layers_of
from leanconv.operators.chains import CONV_CHAIN, LAYERS
from leanconv.spec import Activation
from leanconv.target import preset
from leanconv.types import FLOAT64
from support.block_chains import RELU6, Block, Runner
from support.errors import relative_error
from support.listing import assembly
from support.packing import packed_by

pytestmark = pytest.mark.vectors

SILU, SWISH = Activation("silu", ()), Activation("hard_swish", ())
BLOCKS = {
    "residual": Block(24, 144, 24, (13, 11), residual=True),
    "stride 2": Block(16, 96, 24, (15, 14), stride=2),
    "5x5": Block(20, 50, 20, (9, 10), kernel=5, pads=(2, 2, 2, 2), residual=True),
    "asymmetric pads": Block(32, 192, 40, (7, 7), 5, 2, (1, 2, 3, 2), batch=2),
    "long sums": Block(160, 288, 17, (7, 6), activations=(SILU, SWISH, Activation("relu", ()))),
    "no expansion": Block(33, 0, 15, (12, 13), activations=(None, RELU6, SILU)),
    "no expansion, stride 2": Block(64, 0, 72, (9, 9), 3, 2, batch=3),
    "one row": Block(16, 32, 16, (1, 9), residual=True),
    "one column, 5x5": Block(16, 64, 8, (17, 1), 5, pads=(2, 2, 2, 2)),
    "no pads": Block(8, 64, 32, (8, 19), pads=(0, 0, 0, 0), bias=False),
    "mostly padding": Block(17, 32, 16, (4, 5), 3, 2, (4, 5, 4, 3)),
    "dilated": Block(16, 48, 33, (14, 12), pads=(2, 2, 2, 2), dilation=2),
    "stem": Block(3, 32, 16, (19, 23), first=(3, 2)),
    "strides larger than the kernel": Block(16, 32, 16, (13, 13), 3, 4, (0, 1, 0, 0)),
}
EXACT = {
    name: replace(block, integers=True, activations=(None, None, None))
    for name, block in BLOCKS.items()
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BLOCKS)
def test_every_form_is_near_float64(name: str) -> None:
    runner = Runner(BLOCKS[name])
    expected = BLOCKS[name].expected()
    choices = runner.choices()
    kinds = {str(choice).partition(":")[0] for choice in choices}
    assert {"layers", "panel"} <= kinds
    assert ("rows" in kinds) == bool(BLOCKS[name].inner)
    for choice in choices:
        assert relative_error(runner.run(choice, (0.4,)), expected) < 1e-6, str(choice)


@pytest.mark.drawn
@pytest.mark.parametrize("name", EXACT)
def test_small_integers_are_exact(name: str) -> None:
    runner = Runner(EXACT[name])
    expected = EXACT[name].expected()
    for choice in runner.choices():
        assert np.array_equal(runner.run(choice), expected), choice


@pytest.mark.parametrize("name", ["residual", "asymmetric pads", "no expansion", "stem"])
def test_bits_do_not_depend_on_who_does_which_chunk(name: str) -> None:
    runner = Runner(replace(BLOCKS[name], batch=2))
    for choice in runner.choices():
        whole = runner.run(choice)
        for cuts in ((0.5,), (0.34, 0.67), tuple(i / 16 for i in range(16))):
            assert np.array_equal(runner.run(choice, cuts), whole), (str(choice), cuts)


def _there_and_back(chunks: int) -> list[int]:
    """Up to the middle, on from the end downwards, then the first chunk once more."""
    middle = chunks // 2
    return [*range(middle), *reversed(range(middle, chunks)), 0, 1 % chunks]


@pytest.mark.drawn
@pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if block.inner])
def test_rows_go_on_from_either_side(name: str) -> None:
    runner = Runner(replace(BLOCKS[name], batch=2))
    for choice in runner.choices():
        if choice.algorithm == "rows":
            whole = runner.run(choice)
            for order in (range, lambda n: range(n)[::-1], _there_and_back):
                assert np.array_equal(runner.run(choice, order=order), whole), choice


@pytest.mark.parametrize("name", ["residual", "5x5", "no expansion", "asymmetric pads"])
def test_rows_and_panels_round_as_one_layer_after_the_other(name: str) -> None:
    runner = Runner(BLOCKS[name])
    expected = runner.run(LAYERS)
    for choice in runner.choices():
        if choice.algorithm != "split":
            assert np.array_equal(runner.run(choice), expected), choice


@pytest.mark.parametrize("name", ["residual", "no expansion", "stem", "long sums"])
def test_double_precision(name: str) -> None:
    block = replace(BLOCKS[name], dtype=FLOAT64)
    runner = Runner(block)
    for choice in runner.choices():
        assert relative_error(runner.run(choice), block.expected()) < 2e-15, str(choice)


@pytest.mark.presets
@pytest.mark.parametrize("name", ["residual", "stride 2", "5x5", "no expansion", "stem"])
def test_other_registers(name: str) -> None:
    runner = Runner(EXACT[name], preset("haswell"))
    for choice in runner.choices():
        assert np.array_equal(runner.run(choice), EXACT[name].expected()), choice


@pytest.mark.parametrize("target", ["neoverse-n1", "skylake-avx512"])
def test_code_for_other_machines(target: str) -> None:
    runner = Runner(BLOCKS["residual"], preset(target))
    forms = {choice.algorithm: choice for choice in runner.choices()}
    for choice in forms.values():
        for call in runner.lower(choice).calls:
            text = assembly(call.kernel, preset(target))
            if not isinstance(call.kernel, SumOfParts):
                assert "fmla" in text or "vfmadd" in text


def test_a_first_convolution_reads_plain_images() -> None:
    block = EXACT["stem"]
    runner = Runner(block, plain=True)
    for choice in runner.choices():
        assert np.array_equal(runner.run(choice), block.expected()), choice


@pytest.mark.parametrize("name", ["residual", "asymmetric pads", "no expansion", "stem"])
def test_facts(name: str) -> None:
    """Operations, bytes of constants and of buffers are what is stated."""
    runner = Runner(BLOCKS[name])
    flops = None
    for choice in runner.choices():
        lowered = runner.lower(choice)
        total = sum(call.kernel.flops for call in lowered.calls)
        flops = flops or total
        assert total == flops, str(choice)
        for packing in lowered.packings:
            made = {role: array.nbytes for role, array in packed_by(packing).items()}
            assert made == dict(packing.bytes)


@pytest.mark.parametrize("target", ["haswell", "znver4"])
def test_the_inner_tensor_is_never_stored(target: str) -> None:
    """96 channels at 112x112 take 4.8 MB; a row at a time takes a fiftieth."""
    runner = Runner(Block(16, 96, 24, (112, 112), stride=2), preset(target))
    layers, (best, *_) = runner.lower(LAYERS), runner.choices()
    assert sum(layers.temporaries.values()) == 4 * (96 * 112 * 112 + 96 * 56 * 56)
    fused = {choice: runner.lower(choice) for choice in runner.choices() if choice != LAYERS}
    scratch = {c: max(call.kernel.scratch_bytes for call in one.calls) for c, one in fused.items()}
    assert not fused[best].temporaries
    assert scratch[best] < 200_000
    assert min(scratch.values()) < 65_536


def test_small_maps_are_split_by_channels() -> None:
    runner = Runner(Block(160, 960, 160, (7, 7), residual=True), preset("znver4"))
    chosen = runner.choices()[0]
    assert chosen.algorithm == "split"
    first, last = runner.lower(chosen).calls
    assert isinstance(first.kernel, FusedChain)
    assert last.in_place == (last.kernel.operands.index("residual"),)


@pytest.mark.parametrize("target", ["znver4", "haswell"])
def test_prefetches_of_long_panels_are_a_loop(target: str) -> None:
    block = Block(480, 0, 480, (3, 80), 5, pads=(2, 2, 2, 2))
    runner = Runner(block, preset(target))
    for choice in runner.choices():
        kernel = runner.lower(choice).calls[0].kernel
        if isinstance(kernel, FusedChain):
            assert kernel.emit(preset(target)).count("call void @llvm.prefetch") <= 4


def test_reproducible_chooses_as_for_one_image() -> None:
    block = Block(96, 576, 96, (14, 14), residual=True)
    names = []
    for batch in (1, 8):
        runner = Runner(replace(block, batch=batch))
        asked = CONV_CHAIN.choices(runner.context(reproducible=True))
        names.append(asked)
        for choice in asked:
            lowered = CONV_CHAIN.lower(runner.context(reproducible=True), choice)
            assert (choice == LAYERS or choice.algorithm == "split") == bool(lowered.temporaries)
        free = runner.choices()
    assert names[0] == names[1] != free


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(SpecError, match="expected one of"):
        CONV_CHAIN.choice_named("columns")
    with pytest.raises(SpecError, match="expected one of"):
        Runner(BLOCKS["residual"]).lower(CONV_CHAIN.choice_named("rows:rows=999,step=1"))


WIDE = {"expanded": Block(64, 192, 64, (1, 200)), "separable": Block(192, 0, 192, (1, 200))}


@pytest.mark.parametrize("target", ["haswell", "sapphirerapids"])
@pytest.mark.parametrize(
    "form", ["panel:rows=14,step=14", "rows:rows=4,step=4", "split:parts=2,step=28"]
)
@pytest.mark.parametrize("name", WIDE)
def test_a_form_of_another_size_has_several_chunks(name: str, form: str, target: str) -> None:
    """Whatever the height is; and no more than rows demand where a block takes no time."""
    choice, machine = CONV_CHAIN.choice_named(form), preset(target)
    for height in (*range(1, 20), 57):
        (layers,) = layers_of(Runner(replace(WIDE[name], size=(height, 200)), machine).context())
        made = form_of_size(choice, layers.chain, machine)
        fused = build(layers.chain, made, machine).chain
        assert fused.chunks >= 4, height
        again = form_of_size(made.choice, layers.chain, machine)
        assert (again.rows, again.parts) == (made.rows, made.parts)
    (layers,) = layers_of(Runner(replace(WIDE[name], size=(3, 2)), machine).context())
    made = form_of_size(choice, layers.chain, machine)
    assert (made.rows, made.parts) == (3, choice.parameters.parts or 1)  # type: ignore[attr-defined]
