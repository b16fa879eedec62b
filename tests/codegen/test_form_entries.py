"""Entries of forms on disk: with them nothing is emitted, and what is wrong in them is a miss."""

from __future__ import annotations

import hashlib
import json
import operator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.codegen import compiler, forms, known_forms, linking
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import Form, FormRecord, Instance, split
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.known_forms import (
    description,
    packed,
    packed_forms,
    skeleton_description,
    unpacked,
    unpacked_forms,
)
from leanconv.symbolic import Expressions, Record
from support.forms import form_of
from support.kernel_runner import run_kernel
from support.onnx_models import small_cnn
from support.small_kernels import Scale, conv_kernel

DIGEST = hashlib.sha256(b"text").hexdigest()
INSTANCES = [Instance(DIGEST, ()), Instance(DIGEST, (1, -(2**63), 2**63 - 1))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, beside which nothing is loaded or known."""
    cache = DiskCache(tmp_path / "objects")
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    forget(monkeypatch)
    return tmp_path / "objects"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as a process that begins."""
    monkeypatch.setattr(linking, "_loaded", {})
    monkeypatch.setattr(forms, "_forms", {})


def emit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each emission an error."""

    def refused(*_: object) -> None:
        raise AssertionError("emitted")

    monkeypatch.setattr(forms, "emitted", refused)


# -- what they are for ---------------------------------------------------------------------
def test_with_a_full_cache_nothing_is_emitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto, images = small_cnn(), np.ones((2, 3, 16, 16), "f4")
    net = lc.load(proto, threads=1)
    wanted = net(images)
    forget(monkeypatch)
    emit_nothing(monkeypatch)
    np.testing.assert_array_equal(lc.load(proto, threads=1)(images), wanted)


def test_a_form_whose_object_is_gone_is_compiled_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.load([kernel()])
    for path in folder.glob("*.o"):
        path.unlink()
    forget(monkeypatch)
    assert compiler.load([kernel()]).address(kernel())
    assert len(list(folder.glob("*.o"))) == 1


def kernel() -> Kernel:
    return conv_kernel("ic16ih30iw30oc16oh30ow30kh3ph1", host())


def higher() -> Kernel:
    """One of the same form."""
    return conv_kernel("ic16ih34iw30oc16oh34ow30kh3ph1", host())


def test_kernels_that_were_never_loaded_together_have_forms_on_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = compiler.load([kernel(), higher()])
    assert both.forms == 1
    for path in folder.glob("*.forms"):
        path.unlink()
    forget(monkeypatch)
    emit_nothing(monkeypatch)
    found = compiler.load([higher(), kernel()])
    assert [found.form(k).words for k in (kernel(), higher())] == [
        both.form(k).words for k in (kernel(), higher())
    ]
    assert len(list(folder.glob("*.forms"))) == 1


def of_one_skeleton() -> list[Kernel]:
    """Two kernels of two forms."""
    alike: dict[str | None, dict[str, Kernel]] = {}
    for width in range(20, 70):  # columns that are left over are forms
        each = conv_kernel(f"ic16ih30iw{width}oc16oh30ow{width}kh3ph1", host())
        digest = forms.instance_of(each, host()).digest
        alike.setdefault(skeleton_description(each), {})[digest] = each
    return list(max(alike.values(), key=len).values())[:2]


def test_all_forms_of_a_skeleton_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = of_one_skeleton()
    for each in (one, other):  # as two processes
        forget(monkeypatch)
        assert compiler.load([each]).compiled == 1
    for path in folder.glob("*.forms"):
        path.unlink()
    forget(monkeypatch)
    emit_nothing(monkeypatch)
    assert compiler.load([one, other]).forms == 2


def test_what_two_processes_keep_at_once_is_all_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, cache = of_one_skeleton(), compiler.object_cache()
    for each in both:  # neither has read what the other has written
        forget(monkeypatch)
        instances = {each: forms.instance_of(each, host())}
        known_forms.remember(instances, [each], host(), cache)
    forget(monkeypatch)
    found, _ = known_forms.known_instances(both, host(), cache)
    assert [*found] == both


def test_forms_of_one_text_with_other_guards_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    below = Expressions().node(operator.lt, Expressions().variable(0), 9)
    records = [Record.of({below: answer}, ()) for answer in (True, False)]
    alike = [Form(FormRecord(DIGEST, (), record)) for record in records]
    read = unpacked_forms(packed_forms(alike), 1) or ()
    for _ in range(2):  # what is known already is not taken twice
        forms.adopt(kernel(), host(), read)
    kept = forms.forms_of_skeleton(kernel(), host())
    assert [form.record for form in kept] == [form.record for form in alike]


@pytest.mark.parametrize("damage", [b"", b"[", b"{}", b"[[1]]", b"7", b"[" * 100_000])
def test_another_entry_of_a_skeleton_is_a_miss(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: bytes,
) -> None:
    wanted = compiler.load([kernel()]).form(kernel()).words
    for path in folder.glob("*.forms"):
        path.unlink()
    (path,) = folder.glob("*.skeleton")
    cache = DiskCache(folder, suffix=".skeleton")
    body = cache.get(path.stem)
    cache.put(path.stem, damage)
    forget(monkeypatch)
    assert compiler.load([kernel()]).form(kernel()).words == wanted
    assert "is damaged; it is made anew" in caplog.text
    assert cache.get(path.stem) == body


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b""])
def test_another_entry_than_this_is_a_miss(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Any,
) -> None:
    wanted = compiler.load([kernel()]).form(kernel()).words
    (path,) = folder.glob("*.forms")
    cache = DiskCache(folder, suffix=".forms")
    body = cache.get(path.stem)
    assert body is not None
    cache.put(path.stem, damage(body))
    forget(monkeypatch)
    assert compiler.load([kernel()]).form(kernel()).words == wanted
    assert "is damaged; it is made anew" in caplog.text
    assert cache.get(path.stem) == body


def test_kernels_of_others_have_no_entries(folder: Path) -> None:
    """Nobody hashes their sources."""

    @dataclass(frozen=True)
    class Twice(Scale):
        pass

    x = np.ones(8, "f4")
    run_kernel(Twice(2.0), x, x * np.nan)
    assert not [*folder.glob("*.forms"), *folder.glob("*.skeleton")]
    assert description([Twice(2.0), kernel()]) is None
    assert skeleton_description(Twice(2.0)) is None


def test_what_is_loaded_together_is_in_the_key() -> None:
    other = conv_kernel("ic16ih30iw31oc16oh30ow31kh3ph1", host())
    groups = [[kernel()], [other], [kernel(), other], [other, kernel()]]
    assert len({description(group) for group in groups}) == len(groups)


# -- their bytes ---------------------------------------------------------------------------
def test_entries_are_read_as_they_were_written() -> None:
    assert unpacked(packed(INSTANCES) or b"", 2) == INSTANCES
    assert unpacked(packed([]) or b"", 0) == []


def test_no_other_bytes_are_taken() -> None:
    body = packed(INSTANCES)
    assert body is not None
    for size in range(len(body)):
        assert unpacked(body[:size], 2) is None
    assert unpacked(body + bytes(1), 2) is None
    assert unpacked(body, 1) is None
    assert unpacked(body, 3) is None
    assert unpacked(bytes(32) + b"\xff\xff" + bytes(100), 1) is None


def test_forms_of_too_many_words_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packed([Instance(DIGEST, (1,) * 2**16)]) is None
    assert packed([Instance(DIGEST, (1,) * (2**16 - 1))])
    monkeypatch.setattr(known_forms, "_MOST_WORDS", 0)
    assert compiler.load([kernel()]).form(kernel()).words
    assert not list(folder.glob("*.forms"))


def test_forms_are_read_as_they_were_written() -> None:
    form = form_of(kernel(), host())
    assert form.record.kinds
    (read,) = unpacked_forms(packed_forms([form]), len(split(kernel())[1])) or ()
    assert read.record == form.record
    assert unpacked_forms(packed_forms([]), 0) == []


@pytest.mark.parametrize(
    "step",
    [
        "__import__('os')",
        "v[0]",
        ["v"],
        ["v", -1],
        ["v", 2],
        ["v", True],
        ["v", 0, 0],
        ["v", 0.0],
        ["**", 0, 0],
        ["<<", [1], [999999999]],
        ["__import__('os')", 0, 0],
        ["neg", 0, 0],
        ["+", 0],
        ["+", 0, 1, 0],
        ["min", 0],
        ["+", 0, 3],
        ["+", 0, -1],
        ["+", 0, "v[0]"],
        ["+", 0, []],
        ["+", 0, [1, 2]],
        ["+", 0, ["1"]],
        ["+", 0, [None]],
        ["+", 0, [2**63]],
        ["+", 0, [float("nan")]],
        ["+", 0, [float("inf")]],
        [["+"], 0, 1],
        [],
        7,
        None,
    ],
)
def test_expressions_are_steps_of_arithmetic_alone(step: object) -> None:
    steps = [["v", 0], ["+", 0, [1]], ["<", 0, [12]]]
    good = [DIGEST, ["i64"], [steps, [[2, True]], [1]]]
    assert unpacked_forms(json.dumps([good]).encode(), 2)
    bad = [DIGEST, ["i64"], [[*steps, step], [[2, True]], [1]]]
    assert unpacked_forms(json.dumps([good, bad]).encode(), 2) is None


@pytest.mark.parametrize("sign", ["*", "+"])
def test_expressions_whose_numbers_grow_without_end_have_none(sign: str) -> None:
    steps = [["v", 0], *([sign, number, number] for number in range(5000))]
    form = [DIGEST, ["i64"], [steps, [], [len(steps) - 1]]]
    (read,) = unpacked_forms(json.dumps([form]).encode(), 1) or ()
    assert read.at((3,)) is None


@pytest.mark.parametrize("last", [["+", 0, [1]], ["-", 0, 0]])  # an infinity, and none
def test_a_word_that_is_no_number_is_a_miss(last: list[object]) -> None:
    form = [DIGEST, ["i64"], [[["*", [1e308], [1e308]], last], [], [1]]]
    (read,) = unpacked_forms(json.dumps([form]).encode(), 0) or ()
    assert read.at(()) is None


def test_no_entry_is_an_exception_a_hang_or_no_number() -> None:
    """Mutated entries, as if their checksums were right."""
    body = packed_forms([form_of(kernel(), host())])
    random, values = Random(0), split(kernel())[1]
    marks = list(b'[]",-.0123456789eEvNIntuf+*/%<>=!')
    misses = 0
    for _ in range(3000):
        changed = bytearray(body)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(changed))
            changed[at : at + random.randint(0, 2)] = bytes(
                random.choices(marks, k=random.randint(0, 3))
            )
        found = unpacked_forms(bytes(changed), len(values))
        misses += found is None
        for form in found or ():
            made = form.at(values)
            assert made is None or all(-(2**63) <= word < 2**63 for word in made.words)
    assert 500 < misses < 3000


@pytest.mark.parametrize(
    "form",
    [
        ["x" * 64, [], [[], [], []]],
        [DIGEST[:-1], [], [[], [], []]],
        [None, [], [[], [], []]],
        [DIGEST, [], [None, [], []]],
        [DIGEST, ["i32"], [[["v", 0]], [], [0]]],
        [DIGEST, [[]], [[["v", 0]], [], [0]]],
        [DIGEST, [], [[["v", 0]], [], [0]]],
        [DIGEST, ["i64"], [[["v", 0]], [], []]],
        [DIGEST, ["i64"], [[["v", 0]], [], [1]]],
        [DIGEST, ["i64"], [[["v", 0]], [], ["0"]]],
        [DIGEST, [], [[["v", 0]], [[0, "1"]], []]],
        [DIGEST, [], [[["v", 0]], [[0, None]], []]],
        [DIGEST, [], [[["v", 0]], [[0, float("nan")]], []]],
        [DIGEST, [], [[["v", 0]], [[0, 2**63]], []]],
        [DIGEST, [], [[["v", 0]], [[-1, True]], []]],
        [DIGEST, None, [[], [], []]],
        [DIGEST, [], None],
        [DIGEST, [], [[], []]],
        [DIGEST, [], [[], [], [], []]],
        [DIGEST, []],
        [DIGEST, [], [[], [], []], []],
    ],
)
def test_no_other_forms_are_taken(form: list[object]) -> None:
    assert unpacked_forms(json.dumps([form]).encode(), 1) is None
