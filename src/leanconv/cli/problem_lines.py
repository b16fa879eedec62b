"""Problems as one line, such as `ic64ih56oc64oh54kh3`, told from names of files."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from leanconv.errors import InputError, SpecError
from leanconv.reference.layers import LAYERS
from leanconv.spec.conv import ConvSpec

if TYPE_CHECKING:
    pass

# What a problem begins with; a model's file may be called so, too, but then it is there.
_PROBLEM = re.compile(r"_*(mb|g|ic|oc|[ioksdp][dhw])\d")
_CV = re.compile(r"cv\d+")
_FORM = (
    "[mbN] [gN] icN ihN "
    "[iwN] ocN [ohN] [owN] khN [kwN] [shN] [swN] [phN] [pwN] [dhN] [dwN] without the blanks, N "
    "numbers (mb images, g groups, i input, o output, k kernel, s stride, p padding, d dilation, "
    "0 for dense), or one of cv1 to cv12, the layers of the MEC paper"
)
_GRAMMAR = f"a problem is one convolution on one line, such as ic64ih56oc64oh54kh3: {_FORM}"


def is_problem(text: str) -> bool:
    """Tell a problem line (`ic64ih56oc64oh54kh3`) from a file name.

    Raises:
        InputError: it is neither: no file has this name, and it does not look like one.
    """
    if os.path.exists(text):
        return False
    if text in LAYERS or _PROBLEM.match(text) is not None:
        return True
    _check_layer(text)
    if _like_a_file(text):
        return False
    raise InputError(f"{text!r} is neither a file that exists nor a problem; {_GRAMMAR}")


def model_file(text: str, command: str) -> str:
    """The file of a model, for a command that takes no problems.

    Raises:
        InputError: it is a problem line.
    """
    problem = text in LAYERS or _PROBLEM.match(text) is not None
    if problem and not _like_a_file(text):
        raise InputError(
            f"{text!r} is a problem; `leanconv {command}` takes models only: give an ONNX file "
            f"(problems are taken by `leanconv explain`, `algorithms` and `bench`)"
        )
    return text


def _check_layer(text: str) -> None:
    """Refuse a layer of the MEC paper that there is not."""
    if _CV.fullmatch(text) and text not in LAYERS:
        raise InputError(
            f"there is no layer {text!r}; expected cv1 to cv12, those of the MEC paper"
        )


def read_problem(text: str, **changes: Any) -> ConvSpec:
    """Read a problem line.

    Args:
        text: the line, or a layer of the MEC paper by its name, "cv1" to "cv12".
        changes: other fields of the spec, such as `dtype="float64"`.

    Raises:
        InputError: it cannot be read; the message says what a problem looks like.
    """
    try:
        return ConvSpec.parse(LAYERS.get(text, text), **changes)
    except SpecError as error:
        if _PROBLEM.match(text) is None and _like_a_file(text):
            there = "a file" if os.path.exists(text) else "the name of a file that does not exist"
            raise InputError(f"{text!r} is {there}, expected a problem; {_GRAMMAR}") from error
        _check_layer(text)
        has_example = "such as" in str(error)
        form = f": {_FORM}" if has_example else f"; {_GRAMMAR}"
        raise InputError(f"{error}{form}") from error


def _like_a_file(text: str) -> bool:
    """Whether a text looks like the name of a file: it has a folder or an ending."""
    return os.sep in text or "." in text or os.path.exists(text)
