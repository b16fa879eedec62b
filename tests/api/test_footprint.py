"""What a network and its process take of memory: the network exactly, the rest as Linux counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.backend import Footprint
from leanconv.runtime.memory import Held, Resident, counted_resident, resident
from support.onnx_models import small_cnn

MIB = 2**20
_SMAPS = """\
00400000-00500000 r--p 00000000 fe:00 11 /usr/bin/python3.11
Rss:                   4 kB
Pss:                   1 kB
00500000-00600000 r-xp 00100000 fe:00 11 /usr/bin/python3.11
Rss:                   8 kB
VmFlags: rd ex mr
00700000-00800000 rw-p 00000000 00:00 0 [heap]
Rss:                  16 kB
7f0000000000-7f0000001000 r-xp 00000000 fe:00 12 /lib/with spaces/libllvmlite.so
Rss:                  32 kB
7f0000001000-7f0000002000 rw-p 00000000 fe:00 12 /lib/with spaces/libllvmlite.so
Rss:                  64 kB
7f0000002000-7f0000003000 r--s 00000000 fe:00 13 /models/net.onnx
Rss:                 128 kB
7f0000003000-7f0000004000 r-xp 00000000 00:00 0
Rss:                 256 kB
"""


def test_mappings_are_told_apart() -> None:
    found = counted_resident(_SMAPS)
    assert found == Resident(96 * 1024, 12 * 1024, 128 * 1024, 272 * 1024)
    assert found.total == 508 * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_process_is_counted() -> None:
    found = resident()
    assert found is not None
    assert found.libraries > MIB
    assert found.other > MIB


def test_network_is_counted_exactly(tmp_path: Path) -> None:
    net = lc.load(small_cnn(), threads=1)
    x = np.ones((2, 3, 16, 16), "f4")
    net.run({net.inputs[0].name: x})
    found = net.footprint()
    assert found.weights == net.plan.weight_bytes
    assert found.workspace == net.plan.arena_bytes
    assert found.private == found.weights + found.workspace + found.code
    assert found.code > 0
    larger = np.ones((3, 3, 16, 16), "f4")
    if net.inputs[0].shape[0] is None or isinstance(net.inputs[0].shape[0], str):
        net.run({net.inputs[0].name: larger})
        both = net.footprint()
        assert both.weights == found.weights  # packed once
        assert both.workspace == max(found.workspace, net.plan.arena_bytes)


def test_free_large_outputs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanconv.runtime.memory._LEAST_BYTES", 1)
    net = lc.load(small_cnn(), threads=1)
    x = np.ones((2, 3, 16, 16), "f4")
    (y,) = net.run({net.inputs[0].name: x}).values()
    before, kept = net.footprint(), net.kept_bytes
    size = y.nbytes
    del y
    after = net.footprint()
    assert after.outputs == before.outputs + size
    assert after.private == before.private + size
    assert net.kept_bytes == kept + size
    assert after.to_json()["output_bytes"] == after.outputs


def test_weights_in_a_file_are_no_private_memory(tmp_path: Path) -> None:
    net = lc.load(small_cnn(), threads=1, shared_weights=tmp_path)
    net.run({net.inputs[0].name: np.ones((2, 3, 16, 16), "f4")})
    found = net.footprint()
    assert found.private == found.workspace + found.code


def test_text() -> None:
    held = Held(MIB, {1: 2 * MIB, 2: 3 * MIB}, 4 * MIB)
    found = Footprint.of(held, 0, held.bytes)
    assert "weights 5 MiB, workspace 4 MiB, code 1 MiB" in str(found)
    kept = Footprint.of(held, 3 * MIB, held.bytes)
    assert "code 1 MiB, free outputs 3 MiB" in str(kept)
    assert kept.private == held.bytes + 3 * MIB
    process = Resident(0, 20 * MIB, MIB, 30 * MIB)
    known = Footprint(5 * MIB, 4 * MIB, MIB, 0, process, False, 10 * MIB)
    assert str(known) == (
        "51 MiB in memory: weights 5 MiB, workspace 4 MiB, code 1 MiB, LLVM not loaded, "
        "libraries 20 MiB, mapped files 1 MiB, Python's objects and all else 20 MiB"
    )
    assert known.to_json()["other_bytes"] == 20 * MIB
    nothing = Footprint(1, 2, 3, 0, None, True, 6)
    assert nothing.rest is None
    assert nothing.to_json()["resident_bytes"] is None
    assert str(nothing) == "weights 1 B, workspace 2 B, code 3 B"
