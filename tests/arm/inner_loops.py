"""The inner loops that are emitted for AArch64, against the multiply-adds that a core can start.

    python tests/arm/inner_loops.py                     needs llvm-mca 16 or later on the PATH
    python tests/arm/inner_loops.py --mca llvm-mca-19   or by name

Nothing is run and nothing is timed: LLVM's model of a core schedules each innermost loop that
multiplies and adds, with every operand in L1 and every branch foreseen. Only cores of which LLVM
has a model of their own are asked for; a Cortex-A72, A76 or M1 it takes for another one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from leanconv.types import FLOAT64

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "src", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from leanconv.algorithms.parameters import AUTO  # noqa: E402
from leanconv.algorithms.select import choice_named, choose  # noqa: E402
from leanconv.target import Target, preset  # noqa: E402
from support.listing import Loop, assembly, multiply_loops  # noqa: E402
from support.small_kernels import problem  # noqa: E402

# Cores, and how many multiply-adds of 16 bytes each starts in a cycle (Arm's optimization guides).
CORES = {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "neoverse-v2": 4}
# Label: algorithm, problem, blocks of channels, changes.
LAYERS = {
    "1x1, blocks": ("direct", "ic128ih28oc256oh28kh1", True, {}),
    "3x3, blocks": ("direct", "ic64ih56oc64oh56kh3ph1", True, {}),
    "3x3, plain": ("direct", "ic64ih56oc64oh56kh3ph1", False, {}),
    "3x3 stride 2, blocks": ("direct", "ic64ih56oc128oh28kh3sh2ph1", True, {}),
    "3x3, float64": ("direct", "ic64ih56oc64oh56kh3ph1", True, {"dtype": FLOAT64}),
    "1x1, planes": ("planar", "ic128ih28oc256oh28kh1", False, {}),
    "3x3, F(4, 3), blocks": ("winograd:m=4", "ic64ih56oc64oh56kh3ph1", True, {}),
    "3x3, F(4, 3), stages": ("winograd:form=stages,m=4", "ic64ih56oc64oh56kh3ph1", True, {}),
    "depthwise 3x3, blocks": ("depthwise", "g96ic96ih56oc96oh56kh3ph1", True, {}),
    "depthwise 5x5, blocks": ("depthwise", "g96ic96ih28oc96oh28kh5ph2", True, {}),
    "depthwise 3x3, planes": ("planar", "g96ic96ih56oc96oh56kh3ph1", False, {}),
}
_ROUNDS = 200


@dataclass(frozen=True)
class Scheduled:
    """A loop on a core.

    Attributes:
        fmas, instructions: of an iteration.
        cycles: of an iteration, in the steady state.
        share: of the multiply-adds that the core could have started meanwhile.
    """

    fmas: int
    instructions: int
    cycles: float
    share: float


def loops_of(layer: str, target: Target) -> list[Loop]:
    """The loops of a layer that multiply and add, the one with the most multiply-adds first."""
    algorithm, text, blocked, changes = LAYERS[layer]
    given = problem(text, target, blocked, **changes)
    candidate = choose(given, target, choice_named(algorithm) if algorithm else AUTO)
    listings = (assembly(use.kernel, target) for use in candidate.kernels)
    found = {loop.lines[1:]: loop for text in listings for loop in multiply_loops(text)}
    return sorted(found.values(), key=lambda loop: -loop.fmas)


def scheduled(loop: Loop, core: str, mca: str) -> Scheduled:
    """Have LLVM schedule a loop.

    Raises:
        RuntimeError: llvm-mca failed; the message is its own.
    """
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={_ROUNDS}"]
    listing = "\n".join(loop.lines) + "\n"
    done = subprocess.run(command, input=listing, capture_output=True, text=True)
    rows = re.findall(r"^(\w[\w ]+):\s+(\d+)$", done.stdout, re.MULTILINE)
    found = {name: int(value) for name, value in rows}
    if done.returncode or "Total Cycles" not in found:
        raise RuntimeError(done.stderr.strip())
    cycles = found["Total Cycles"] / _ROUNDS
    share = loop.fmas / (CORES[core] * cycles)
    return Scheduled(loop.fmas, found["Instructions"] // _ROUNDS, cycles, share)


def main() -> int:
    """Print a table: the loop with the most multiply-adds of each layer, on each core."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mca", default="llvm-mca", help="the program (default llvm-mca)")
    parser.add_argument("--all", action="store_true", help="every loop, not the largest alone")
    parser.add_argument("--listing", action="store_true", help="print the loops' instructions, too")
    options = parser.parse_args()
    mca = shutil.which(options.mca)
    if mca is None:
        parser.error(f"{options.mca} is missing: apt-get install llvm-19, then --mca llvm-mca-19")
    version = re.search(r"version (\d+)", subprocess.check_output([mca, "--version"], text=True))
    if version is None or int(version[1]) < 16:
        parser.error(f"got {version and version[0]}; before 16 LLVM has no model of Neoverse N1")
    print("| layer | FMLA | instructions | " + " | ".join(CORES) + " |")
    print("|---|---|---|" + "---|" * len(CORES))
    base = preset("neoverse-n1")
    for layer in LAYERS:
        for loop in loops_of(layer, base)[: None if options.all else 1]:
            found = [scheduled(loop, core, mca) for core in CORES]
            shares = " | ".join(f"{100 * each.share:.0f} %" for each in found)
            print(f"| {layer} | {found[0].fmas} | {found[0].instructions} | {shares} |")
            if options.listing:
                print("\n".join(loop.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
