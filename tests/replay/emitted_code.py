"""What code is emitted for every known problem and network, as digests kept in the tree.

    python tests/replay/emitted_code.py            compare with the digests kept; 3 if any differs
    python tests/replay/emitted_code.py --write    keep what is emitted now
    python tests/replay/emitted_code.py haswell    one target only

A change that only moves code leaves every digest as it is; one that means to emit other code renews
them in a commit of its own. For each of four targets (AVX-512 with one and with two multiply-add
units, AVX2, NEON) a file in `digests/` has a line for each convolution of the MEC paper, of two
hundred layers of known networks and of some by every algorithm, and for each example network: the
kernels in order, `Name:digest` of their text, equal ones once. Nothing is compiled or run, and
nothing depends on the machine.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

from leanconv.types import FLOAT64

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT, ROOT / "src", ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import layer_shapes  # noqa: E402  the benchmarks' folder is no package
from examples.networks import NETWORKS  # noqa: E402
from leanconv.algorithms import ALGORITHMS  # noqa: E402
from leanconv.algorithms.parameters import AUTO  # noqa: E402
from leanconv.algorithms.select import choice_named, choose  # noqa: E402
from leanconv.api.conv_choice import conv_problem  # noqa: E402
from leanconv.codegen.kernel import Kernel  # noqa: E402
from leanconv.errors import SpecError  # noqa: E402
from leanconv.graph.onnx_import import read_model  # noqa: E402
from leanconv.graph.passes import PASSES, run_passes  # noqa: E402
from leanconv.operators import Accuracy  # noqa: E402
from leanconv.planner.formats import default_decisions, format_rules  # noqa: E402
from leanconv.planner.lowering import lower_graph  # noqa: E402
from leanconv.planner.weight_streaming import add_weight_prefetch  # noqa: E402
from leanconv.reference.layers import LAYERS  # noqa: E402
from leanconv.spec import ConvSpec  # noqa: E402
from leanconv.target import preset  # noqa: E402

TARGETS = ("znver4", "znver5", "haswell", "neoverse-n1")
DIGESTS = HERE / "digests"
LAYER_ERROR = 2e-6  # of one layer of a network whose answers are to be within 1e-5
# By every algorithm, with parameters that the choice seldom takes, layouts and double precision.
NAMED = (
    "mb2ic20ih15oc24oh8kh3sh2ph1",
    "ic32ih20iw18oc48oh18ow16kh3",
    "g4mb2ic32ih13oc64oh13kh3",
    "g32ic32ih14oc32oh14kh3",
    "ic16ih19oc16oh13kh3dh2",
)
SELECTORS = (
    *ALGORITHMS,
    "winograd:m=2",
    "winograd:form=stages,m=4",
    "fft:tile=32,products=3",
    "im2col:rows=whole",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:form=base",
    "im2win:form=vector",
    "im2win:rows=whole",
)


def problems() -> Iterator[tuple[str, ConvSpec, str | None]]:
    """Label, spec and algorithm (None: the choice) of every convolution."""
    for name, text in LAYERS.items():
        for layout in ("NCHW", "NHWC"):
            yield f"{name} {layout}", ConvSpec.parse(text, layout=layout), None
        yield f"{name} float64", ConvSpec.parse(text, dtype=FLOAT64), None
    for layer in layer_shapes.SHAPES:
        yield layer.name, layer.spec(), None
    for text in NAMED:
        for selector in SELECTORS:
            for layout in ("NCHW", "NHWC"):
                yield f"{text} {layout} {selector}", ConvSpec.parse(text, layout=layout), selector


def conv_kernels(spec: ConvSpec, selector: str | None, target_name: str) -> list[Kernel]:
    """The kernels of one convolution; none where the algorithm refuses it."""
    try:
        choice = choice_named(selector) if selector else AUTO
        candidate = choose(conv_problem(spec, None), preset(target_name), choice)
    except SpecError:
        if selector is None:
            raise
        return []
    return [use.kernel for use in candidate.kernels]


def network_kernels(name: str, target_name: str) -> list[Kernel]:
    """The kernels of an example network, without limits."""
    target = preset(target_name)
    model = read_model(_file(name))
    shapes = {
        each.name: tuple(e if isinstance(e, int) else 1 for e in each.shape or ())
        for each in model.inputs
    }
    graph = run_passes(model.bind(shapes), PASSES)
    accuracy = Accuracy(LAYER_ERROR).of_network(graph, target)
    lowered = lower_graph(graph, target, accuracy, default_decisions(format_rules(graph, target)))
    calls = [call for step in lowered.steps for call in step.calls]
    return [call.kernel for call in add_weight_prefetch(calls, target)]


@lru_cache(maxsize=1)
def _file(name: str) -> bytes:
    return bytes(NETWORKS[name]().SerializeToString())


def line(label: str, kernels: Iterable[Kernel], target_name: str) -> str:
    """One line of a file of digests."""
    target = preset(target_name)
    found = {}
    for kernel in kernels:
        if kernel not in found:
            text = hashlib.sha256(kernel.emit(target).encode()).hexdigest()[:10]
            found[kernel] = f"{type(kernel).__name__}:{text}"
    return f"{label}: {' '.join(found.values()) or 'refused'}"


def lines(target_name: str, networks: Iterable[str] = tuple(NETWORKS)) -> list[str]:
    """Everything for one target."""
    convolutions = (
        line(label, conv_kernels(spec, selector, target_name), target_name)
        for label, spec, selector in problems()
    )
    return [
        *convolutions,
        *(line(name, network_kernels(name, target_name), target_name) for name in networks),
    ]


def kept(target_name: str) -> list[str]:
    """The lines in the tree."""
    return (DIGESTS / f"{target_name}.txt").read_text(encoding="utf-8").splitlines()


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep what is emitted now")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"got {', '.join(sorted(unknown))}; expected some of {', '.join(TARGETS)}")
    targets = options.targets or TARGETS
    differing = 0
    with ProcessPoolExecutor() as workers:
        for name, now in zip(targets, workers.map(lines, targets), strict=True):
            if options.write:
                DIGESTS.mkdir(exist_ok=True)
                (DIGESTS / f"{name}.txt").write_text("\n".join(now) + "\n", encoding="utf-8")
                continue
            difference = list(difflib.unified_diff(kept(name), now, "kept", name, n=0, lineterm=""))
            differing += sum(text.startswith("+") for text in difference[2:])
            print("\n".join(difference) or f"{name}: {len(now)} lines, all as kept")
    if differing:
        print(f"{differing} lines differ; if that is meant, keep them with --write")
    return 3 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
