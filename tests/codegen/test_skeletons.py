"""Which fields of kernels are extents, and how a person finds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import leanconv.operators  # noqa: F401  whose kernels these are
from leanconv.codegen import forms
from leanconv.codegen.forms import extent_names, lifted, split
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.symbolic import Count, Extents, Mark, Symbol, Trace
from support.small_kernels import conv_kernel


@dataclass(frozen=True)
class Part:
    bands: Count
    strides: tuple[Extents, ...]
    name: str = "part"


def kernel_classes(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from kernel_classes(each)


def evaluated(hint: Any) -> Mark | None:
    if isinstance(hint, Mark):
        return hint
    return next((mark for each in get_args(hint) if (mark := evaluated(each))), None)


def test_marks_are_those_of_evaluated_annotations() -> None:
    marked = 0
    for kind in {*kernel_classes(Kernel), Part}:
        if dataclasses.is_dataclass(kind) and kind.__module__.startswith(("leanconv.", __name__)):
            hints = get_type_hints(kind, include_extras=True)
            for name, mark in forms._fields(kind) or ():
                assert mark is evaluated(hints[name]), (kind, name)
                marked += mark is not None
    assert marked > 100


def test_a_kernel_is_split_lifted_and_named_in_one_order() -> None:
    kernel = conv_kernel("ic16ih30iw31oc16oh30ow31kh3ph1", host())
    key, values = split(kernel)
    names = extent_names(kernel)
    assert len(names) == len(values) > 3
    assert "conv.window.out[2]" in names
    assert split(conv_kernel("ic16ih34iw31oc16oh34ow31kh3ph1", host()))[0] == key
    trace = Trace()
    extent = lifted(kernel, trace).conv.window.out[2]  # type: ignore[attr-defined]
    assert isinstance(extent, Symbol)
    assert extent.expression is trace.variable(names.index("conv.window.out[2]"), 31).expression
