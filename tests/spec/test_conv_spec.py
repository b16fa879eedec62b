"""What a convolution is: sizes, amounts, the problem as one line, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.errors import LeanConvError, SpecError
from leanconv.spec import Activation, ConvSpec, effective_extent, output_extent
from leanconv.types import FLOAT32, FLOAT64, FLOATS, Precision

LETTERS = "mbgicokhwdsp_0123459n "


@st.composite
def specs(draw: st.DrawFn) -> ConvSpec:
    """Any convolution whose kernel fits its padded input."""
    rank = draw(st.integers(1, 3))

    def numbers(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(rank))

    kernel, dilation, begin, end = numbers(1, 7), numbers(1, 4), numbers(0, 5), numbers(0, 5)
    size = tuple(
        max(1, effective_extent(k, d) - b - e) + draw(st.integers(0, 20))
        for k, d, b, e in zip(kernel, dilation, begin, end, strict=True)
    )
    groups = draw(st.sampled_from([1, 1, 2, 3, 8]))
    return ConvSpec(
        batch=draw(st.integers(1, 9)),
        in_channels=groups * draw(st.integers(1, 40)),
        out_channels=groups * draw(st.integers(1, 40)),
        size=size,
        kernel=kernel,
        stride=numbers(1, 4),
        dilation=dilation,
        pad_begin=begin,
        pad_end=end,
        groups=groups,
        precision=Precision.of(draw(st.sampled_from(FLOATS))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
    )


def places(spec: ConvSpec, axis: int) -> int:
    """Output positions along an axis, counted one by one."""
    first, count = -spec.pad_begin[axis], 0
    reach = (spec.kernel[axis] - 1) * spec.dilation[axis]
    while first + reach < spec.size[axis] + spec.pad_end[axis]:
        first += spec.stride[axis]
        count += 1
    return count


@given(specs())
def test_sizes_as_counted_one_by_one(spec: ConvSpec) -> None:
    assert spec.output_size == tuple(places(spec, axis) for axis in range(len(spec.size)))
    assert min(spec.output_size) >= 1


@given(specs())
def test_shapes_and_amounts(spec: ConvSpec) -> None:
    channels = {"NCHW": 1, "NHWC": -1}[spec.layout]
    assert spec.input_shape[0] == spec.output_shape[0] == spec.batch
    assert spec.input_shape[channels] == spec.in_channels
    assert spec.output_shape[channels] == spec.out_channels
    assert prod(spec.input_shape) == spec.batch * spec.in_channels * prod(spec.size)
    assert spec.weight_shape[:2] == (spec.out_channels, spec.in_channels // spec.groups)
    assert spec.reduction == prod(spec.weight_shape[1:])
    assert spec.flops == 2 * prod(spec.output_shape) * spec.reduction
    item = {FLOAT32: 4, FLOAT64: 8}[spec.dtype]
    assert spec.itemsize == item
    assert spec.input_bytes == item * prod(spec.input_shape)
    assert spec.weight_bytes == item * prod(spec.weight_shape)
    assert spec.output_bytes == item * prod(spec.output_shape)


def test_known_layers() -> None:
    """The first layer of ResNet-50 (He et al. 2016), and cv1 of the MEC paper."""
    first = ConvSpec.parse("ic3ih224oc64oh112kh7sh2ph3")
    assert first.output_size == (112, 112)
    assert first.flops == 236_027_904
    assert (first.pad_begin, first.pad_end) == ((3, 3), (2, 2))
    assert first.weight_bytes == 64 * 3 * 49 * 4
    mec = ConvSpec.parse("ic3ih227oc96kh11sh4")
    assert mec.output_size == (55, 55)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pad", "out"),
    [
        (5, 3, 1, 1, 0, 3),
        (5, 3, 2, 1, 2, 3),
        (7, 3, 1, 3, 0, 1),
        (6, 3, 1, 3, 0, 0),
        (1, 1, 9, 9, 0, 1),
    ],
)
def test_output_extent(
    size: int, kernel: int, stride: int, dilation: int, pad: int, out: int
) -> None:
    assert output_extent(size, kernel, stride, dilation, pad) == out


# -- one line ------------------------------------------------------------------------------
@settings(max_examples=400)
@given(specs())
def test_the_line_gives_the_problem_back(spec: ConvSpec) -> None:
    again = ConvSpec.parse(str(spec), dtype=spec.dtype, layout=spec.layout)
    assert str(again) == str(spec)
    assert again.output_size == spec.output_size
    # Padding at the end that no window reaches is not in the line.
    reached = tuple(
        (o - 1) * s + effective_extent(k, d) - i - b
        for o, s, k, d, i, b in zip(
            spec.output_size,
            spec.stride,
            spec.kernel,
            spec.dilation,
            spec.size,
            spec.pad_begin,
            strict=True,
        )
    )
    expected = replace(spec, pad_end=tuple(max(0, r) for r in reached))
    assert again == expected


@pytest.mark.parametrize(
    "line",
    [
        "mb1ic64ih56iw56oc64oh54ow54kh3kw3",
        "g32mb4ic32ih14iw14oc32oh7ow7kh3kw3sh2sw2ph1pw1",
        "mb1ic8iw100oc4ow98kw3",
        "mb2ic4id8ih9iw10oc4od6oh7ow8kd3kh3kw3",
        "mb1ic8ih20iw20oc8oh16ow16kh3kw3dh1dw1",
        "mb1ic8ih20iw30oc8oh20ow28kh3kw3ph1pw0",
        "mb1ic64ih56iw56oc64oh54ow54kh4kw4ph0pw0",
    ],
)
def test_lines_as_they_are_written(line: str) -> None:
    assert str(ConvSpec.parse(line)) == line


@pytest.mark.parametrize(
    ("line", "shown", "text"),
    [
        ("ic64ih56oc64oh54kh3", "mb1ic64ih56iw56oc64oh54ow54kh3kw3", "no padding"),
        (
            "ic64ih56oc64oh54kh4",
            "mb1ic64ih56iw56oc64oh54ow54kh4kw4ph0pw0",
            "padding 0x0 before, 1x1 after",
        ),
        (
            "ic64ih56oc64oh90kh3",
            "mb1ic64ih56iw56oc64oh90ow90kh3kw3ph18pw18",
            "padding 18x18",
        ),
    ],
)
def test_padding_that_was_derived_is_shown(line: str, shown: str, text: str) -> None:
    spec = ConvSpec.parse(line)
    assert str(spec) == shown
    assert ConvSpec.parse(shown) == spec
    assert spec.padding_text == text


def test_what_a_short_line_means() -> None:
    short = ConvSpec.parse("ic64ih56oc64oh54kh3")
    assert (short.batch, short.groups, short.stride, short.dilation) == (1, 1, (1, 1), (1, 1))
    assert (short.size, short.kernel, short.pad_begin) == ((56, 56), (3, 3), (0, 0))
    assert ConvSpec.parse(" ic64ih56oc64oh54kh3nres2a \n") == short
    assert ConvSpec.parse("ic64_ih56_oc64_oh54_kh3") == short
    same = ConvSpec.parse("ic8ih10oc8oh10kh4")
    assert (same.pad_begin, same.pad_end) == ((1, 1), (2, 2))
    dilated = ConvSpec.parse("ic8ih10oc8kh3dh1")
    assert dilated.dilation == (2, 2)  # oneDNN's 0 is dense
    from_output = ConvSpec.parse("ic8oc8oh10kh3")
    assert from_output.size == (12, 12)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", "lacks ic"),
        ("ic8ih5kh3", "lacks oc"),
        ("ic8oc8", "lacks spatial"),
        ("ic8oc8ih5", "lacks kh"),
        ("ic8oc8kh3", "lacks kh or ih"),
        ("ic8oc8ih5kh3ih6", "ih twice"),
        ("ic8oc8ih5kh3x1", "'x1'"),
        ("ic8oc8ih5kh3 ic1", "cannot be read"),
        ("ic-8oc8ih5kh3", "cannot be read"),
        ("ic8oc8ih50oh9kh3sh2", "oh9"),
        ("ic8oc8ih5kh9", "fits the padded input"),
        ("ic0oc8ih5kh3", "in_channels of at least 1"),
        ("g3ic8oc9ih5kh3", "divisible by 3"),
        ("ic8oc8ih5kh3sh0", "stride"),
        ("ic8oc8ih5oh3kh3sh0", "a stride of 0; expected sh of at least 1"),
        (f"ic8oc8ih5kh{'3' * 5000}", "cannot be read"),
        ("g0ic8oc8ih5kh3", "groups"),
    ],
)
def test_lines_that_are_no_problem(line: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        ConvSpec.parse(line)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A problem as text, of which up to two characters are lost, changed or put in."""
    text = str(draw(specs()))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        put = draw(st.text(alphabet=LETTERS, max_size=1))
        text = text[:at] + put + text[at + draw(st.integers(0, 1)) :]
    return text


def test_any_text_is_a_problem_or_a_spec_error() -> None:
    read, refused = 0, 0

    @given(lines() | st.text(alphabet=LETTERS, max_size=30))
    def each(text: str) -> None:
        nonlocal read, refused
        try:
            spec = ConvSpec.parse(text)
        except SpecError:
            refused += 1
            return
        read += 1
        assert ConvSpec.parse(str(spec)) == spec

    each()
    assert min(read, refused) >= 15


# -- refusals ------------------------------------------------------------------------------
GOOD = ConvSpec.parse("mb2ic8ih10iw12oc16kh3kw3ph1pw1")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"batch": 0}, "batch"),
        ({"in_channels": -1}, "in_channels"),
        ({"out_channels": 0}, "out_channels"),
        ({"groups": 0}, "groups"),
        ({"groups": 3}, "divisible by 3 groups"),
        ({"size": ()}, "1 to 3 spatial axes, got 0"),
        ({"size": (5,) * 4}, "1 to 3 spatial axes, got 4"),
        ({"size": (0, 5)}, "input extents"),
        ({"kernel": (3,)}, "kernel with 2"),
        ({"kernel": (0, 3)}, "kernel of at least 1"),
        ({"kernel": (13, 3)}, "got 13 over 12 on axis 0"),
        ({"stride": (1, 0)}, "stride of at least 1"),
        ({"dilation": (0, 1)}, "dilation of at least 1"),
        ({"dilation": (2**63, 1), "pad_begin": (2**63, 0), "pad_end": (2**63, 0)}, "at most 2"),
        ({"stride": (1, 10**5000)}, "stride of at most 2.32, got an endless number"),
        ({"pad_begin": (-1, 0)}, "pad_begin of at least 0"),
        ({"pad_end": (0, 0, 0)}, "pad_end with 2"),
        ({"layout": "CHWN"}, "NCHW or NHWC"),
        ({"size": (2**25, 2**25)}, "2\\^48"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], what: str) -> None:
    with pytest.raises(SpecError, match=what) as caught:
        replace(GOOD, **changes)  # type: ignore[arg-type]
    assert isinstance(caught.value, LeanConvError)
    assert isinstance(caught.value, ValueError)


# -- activations ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "kind", "parameters"),
    [
        ("relu", "relu", ()),
        ("relu6", "clip", (0.0, 6.0)),
        ("clip:-1:1", "clip", (-1.0, 1.0)),
        ("clip:0.5", "clip", (0.5, 6.0)),
        ("leaky_relu", "leaky_relu", (0.01,)),
        ("leaky_relu:0.2", "leaky_relu", (0.2,)),
        ("gelu_tanh", "gelu_tanh", ()),
        ("hard_sigmoid:0.2:0.5", "hard_sigmoid", (0.2, 0.5)),
    ],
)
def test_activations_are_read_and_written(
    text: str, kind: str, parameters: tuple[float, ...]
) -> None:
    found = Activation.parse(text)
    assert found == Activation(kind, parameters)
    assert found is not None
    assert Activation.parse(str(found)) == found
    assert Activation.parse(found) is found
    assert Activation.parse(None) is None


@given(st.floats(allow_nan=False, width=32))
def test_any_parameter_survives_the_text(number: float) -> None:
    activation = Activation("leaky_relu", (number,))
    assert Activation.parse(str(activation)) == activation


@pytest.mark.parametrize(
    "text", ["relux", "", "relu:1", "clip:a", "clip:0:1:2", "clip:", "relu6:1"]
)
def test_activations_that_are_none(text: str) -> None:
    with pytest.raises(SpecError, match=r"activation"):
        Activation.parse(text)
