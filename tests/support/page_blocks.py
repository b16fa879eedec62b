"""The Python of a page, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_blocks(
    page: str, folder: Path, names: Any = None, but_for: str | None = None
) -> dict[str, Any]:
    """Run the Python of a page, one block after the other, in a folder beside the examples.

    What it names is put into `names`, too. Blocks with the text `but_for` are left out.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {} if names is None else names
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.M)):
        if but_for is None or but_for not in block:
            exec(compile(block, f"{page}, Python block {number}", "exec"), names)
    return names
