"""Compiled code packs weights as NumPy does.

Copies are equal bit by bit. What Winograd sums in float64 is added tap by tap; BLAS may add in
another order at the edges of its tiles, which float32 does not see.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import parse_choice
from leanconv.algorithms.select import PARAMETERS, choose
from leanconv.codegen import compiler
from leanconv.codegen.forms import instance_of
from leanconv.codegen.host import host
from leanconv.planner.weights import Packer
from leanconv.runtime.memory import Block
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, FLOAT64
from support import integer_conv
from support.small_kernels import problem

pytestmark = pytest.mark.vectors

# The text of a problem, an algorithm, whether channels are in blocks.
CASES = [
    ("ic64ih7oc96oh7kh1", "direct", True),
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", True),
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", False),
    ("ic24ih9oc1000oh9kh1", "direct", True),
    ("ic2000ih1oc1300oh1kh1", "direct", True),  # in pieces
    ("ic300ih14oc310oh14kh3ph1", "winograd:m=2", True),  # in pieces
    ("ic33ih9oc50oh9kh3ph1", "direct", True),
    ("ic600ih9iw9oc20oh4ow4kh3kw2sh2sw2ph0pw0", "direct", True),
    ("g4ic256ih9oc384oh9kh3ph1", "direct", True),
    ("g2ic20ih9oc28oh9kh3ph1", "direct", False),
    ("ic32ih14oc48oh14kh3ph1", "winograd", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=4", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=2", False),
    ("ic32ih14oc40oh7kh3sh2ph1", "winograd:m=2", True),
    ("ic3ih28oc33oh14kh7sh2ph3", "winograd:m=2", False),
    ("ic16ih14oc24oh7kh5sh2ph2", "winograd:m=2", True),
    ("ic32ih14oc70oh14kh5ph2", "winograd:m=2", True),
    ("ic32ih14oc32oh14kh3ph2dh1", "winograd:m=2", True),
    ("g2ic64ih14oc192oh14kh3ph1", "winograd:m=3", True),
]


def compiled(found: Candidate, w: np.ndarray, threads: int = 2) -> dict[str, np.ndarray]:
    """What the compiled code of a candidate makes of weights."""
    assert found.compiled is not None
    calls = found.compiled.calls(w)
    sizes = {role: found.constant_bytes[role] for role in calls}
    library = compiler.load([call.kernel for pieces in calls.values() for call in pieces])
    blocks = {role: Block(size) for role, size in sizes.items()}
    packer = Packer(library, threads)
    for role, pieces in calls.items():
        blocks[role].view(0, sizes[role])[:] = 0xFF  # every byte is to be written
        place = blocks[role].address
        for call in pieces:
            packer.add(call, place)
            place += call.bytes
        assert place == blocks[role].address + sizes[role]
    packer.run()
    return {role: blocks[role].view(0, size).view(w.dtype) for role, size in sizes.items()}


def weights(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Some of them negative zeros; not aligned to an element."""
    rng = np.random.default_rng(5)
    made = rng.standard_normal(shape).astype(dtype)
    made[rng.random(shape) < 0.1] = -0.0
    raw = bytes(1) + made.tobytes()
    return np.frombuffer(raw, np.uint8)[1:].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("text", "algorithm", "blocked"), CASES)
def test_it_packs_as_numpy_does(text: str, algorithm: str, blocked: bool, dtype: str) -> None:
    asked = problem(text, host(), blocked, dtype=dtype)
    shape = ConvSpec.parse(text).weight_shape
    found = choose(asked, host(), parse_choice(algorithm, PARAMETERS))
    w = weights(shape, dtype)
    expected = found.pack(w, {})
    made = compiled(found, w)
    assert set(made) == {"w"}
    if algorithm == "direct" or dtype == FLOAT32:
        assert made["w"].tobytes() == expected["w"].tobytes()
    else:
        np.testing.assert_allclose(made["w"], expected["w"], rtol=0, atol=4e-15)
    assert found.compiled is not None
    others = found.compiled.others({})
    assert made.keys() | others.keys() == expected.keys()


INTEGERS = [
    ("ic32ih14oc48oh14kh3ph1", "winograd:m=4"),
    ("ic35ih14iw13oc45oh14ow13kh3ph1", "winograd:m=4"),  # an odd number of channels
    ("ic300ih14oc310oh14kh3ph1", "winograd:m=2"),  # in pieces
    ("ic33ih14oc40oh7kh3sh2ph1", "winograd:m=2"),
    ("g2ic64ih14oc192oh14kh3ph1", "winograd:m=4x2"),
]


@pytest.mark.parametrize(("text", "algorithm"), INTEGERS)
def test_bytes_are_transformed_exactly(text: str, algorithm: str) -> None:
    spec = ConvSpec.parse(text, precision=integer_conv.U8S8)
    w = np.random.default_rng(2).integers(-128, 128, spec.weight_shape, np.int8)
    given = replace(integer_conv.problem(spec, host()), sum_bits=26)
    found = choose(given, host(), parse_choice(algorithm, PARAMETERS))
    made, expected = compiled(found, w), found.pack(w, {})
    assert made["w"].tobytes() == expected["w"].tobytes()


@pytest.mark.parametrize("algorithm", ["direct", "winograd:m=2"])
def test_one_code_packs_all_layers(algorithm: str) -> None:
    digests = set()
    for text in (
        "ic64ih14oc64oh14kh3ph1",
        "ic96ih14oc40oh14kh3ph1",
        "ic512ih7oc1000oh7kh3ph1",
        "g2ic128ih14oc64oh7kh3sh2ph1",
        "ic64ih14oc64oh14kh5ph2",
    ):
        found = choose(problem(text, host(), True), host(), parse_choice(algorithm, PARAMETERS))
        assert found.compiled is not None
        calls = found.compiled.calls(np.zeros(ConvSpec.parse(text).weight_shape, np.float32))
        digests |= {instance_of(call.kernel, host()).digest for call in calls["w"]}
    assert len(digests) == 1
