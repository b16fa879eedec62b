"""docs/adding.md names the files that change where something is added, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "leanconv"
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
# What has lists of its own, and where a new one is not needed.
APART = ("gpu", "quantizer", "cli", "onnxruntime", "server", "kserve.py", "images", "pages")
# Words that stand where something of the kind has a place, by section.
SAMPLES: dict[str, tuple[str, ...]] = {
    "Where a change goes": (),
    "An operation": ('"CumSum"', '"GridSample"', '"ReduceProd"', '"Asinh"', '"hard_swish"'),
    "A method of convolution": ('"planar"', '"fft"'),
    "Instructions": ('"vnni"', '"dotprod"', '"vbmi"'),
    "An element type": ("BFLOAT16",),
}
# Where a sample stands for another reason than that it was added.
BESIDE: dict[str, tuple[str, ...]] = {
    "Where a change goes": (),
    "An operation": ("graph/convert/constants.py", "graph/passes/expand_quantised.py"),
    "A method of convolution": ("codegen/keys.py",),
    "Instructions": (),
    "An element type": (),
}


def named(section: str) -> list[str]:
    """The paths in a section, of the package or of the project."""
    words = re.findall(r"`([\w/.]+)`", SECTIONS[section])
    return [
        word for word in words if "/" in word or word.endswith(".py") or (SOURCE / word).is_dir()
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_named_is_there(section: str) -> None:
    assert section in SAMPLES, "a section needs samples that hold it to the code"
    for path in named(section):
        if path == "algorithms/NAME":
            continue
        places = (root / f"{path}{end}" for root in (SOURCE, ROOT) for end in ("", ".py"))
        assert any(place.exists() for place in places), f"{path}: there is no such file"


@pytest.mark.parametrize("section", SAMPLES)
def test_where_one_has_a_place_is_named(section: str) -> None:
    paths = [*named(section), *BESIDE[section]]
    for file in SOURCE.rglob("*.py"):
        place = file.relative_to(SOURCE).as_posix()
        found = [word for word in SAMPLES[section] if word in file.read_text(encoding="utf-8")]
        if not found or place.startswith(APART):
            continue
        if re.match(r"algorithms/\w+/", place) and "algorithms/NAME" in paths:
            continue
        within = place, *map(str, Path(place).parents)
        known = any(path in paths for path in within)
        assert known, f"{place} has {found[0]}; name it in docs/adding.md, under {section!r}"
