"""The steps from kernels to a library: each takes data and gives data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leanconv.codegen import compile_threads, compiler, forms, linking
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compiler import Code, compile_emitted, emit, find, link_code
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import key_of
from leanconv.codegen.linking import Batch
from support.small_kernels import conv_kernel

pytestmark = pytest.mark.usefixtures("real_compiler")

SHORT = conv_kernel("ic16ih30iw30oc16oh30ow30kh3ph1", host())
HIGH = conv_kernel("ic16ih34iw30oc16oh34ow30kh3ph1", host())  # of the same form
WIDE = conv_kernel("ic16ih30iw31oc16oh30ow31kh3sh2ph1", host())  # of another one


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """The cache of a process that begins, and nothing in it."""
    cache = DiskCache(tmp_path / "objects")
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    forget(monkeypatch)
    return cache


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as a process that begins."""
    monkeypatch.setattr(linking, "_loaded", {})
    monkeypatch.setattr(forms, "_forms", {})


def compiled(*kernels: Kernel) -> Code:
    return compile_emitted(emit(kernels, host()), len(kernels), host())


def test_at_first_nothing_is_found(objects: DiskCache) -> None:
    code, kept = find([SHORT, WIDE], host())
    assert (code.instances, code.forms, code.compiled, kept) == ({}, {}, 0, False)


def test_a_form_is_emitted_once_and_when_it_is_asked_for(objects: DiskCache) -> None:
    emissions = emit([SHORT, HIGH, WIDE], host())
    kernel, short, text = next(emissions)
    assert kernel is SHORT
    assert text is not None
    assert forms.known_instance(WIDE, host()) is None
    (_, high, no_text), (_, wide, other) = emissions
    assert no_text is None
    assert high.digest == short.digest != wide.digest
    assert high.words != short.words
    assert other not in (None, text)


def test_a_form_without_an_object_is_emitted_again(objects: DiskCache) -> None:
    first = list(emit([SHORT, HIGH], host()))
    assert list(emit([SHORT, HIGH], host())) == first
    assert len(forms.forms_of_skeleton(SHORT, host())) == 1


def test_what_is_emitted_is_compiled_once_and_then_found(
    objects: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(SHORT, HIGH, WIDE)
    assert made.compiled == len(made.forms) == 2
    assert all(isinstance(form, bytes) for form in made.forms.values())
    again = compiled(SHORT, HIGH, WIDE)  # emitted anew, and its objects are on disk
    assert (again.instances, again.forms, again.compiled) == (made.instances, made.forms, 0)
    found, kept = find([SHORT, HIGH, WIDE], host())
    assert (found.instances, found.forms, kept) == (made.instances, made.forms, True)
    (path,) = objects_of(objects, made.instances[WIDE].digest)
    path.unlink()
    found, kept = find([SHORT, HIGH, WIDE], host())
    assert set(found.instances) == {SHORT, HIGH}
    assert not kept


def objects_of(objects: DiskCache, digest: str) -> list[Path]:
    assert objects._folder is not None
    return list(objects._folder.glob(f"{key_of(digest, host())}.o"))


def test_code_that_is_linked_is_found_in_the_process(objects: DiskCache) -> None:
    made = compiled(SHORT, WIDE)
    library = link_code(made, host())
    assert (library.forms, library.compiled) == (2, 2)
    (batch,) = library.batches
    found, _ = find([SHORT, WIDE], host())
    assert set(found.forms.values()) == {batch}
    again = link_code(found, host())
    assert again.address(SHORT) == library.address(SHORT) != library.address(WIDE)
    assert again.batches == library.batches
    assert isinstance(compiled(SHORT).forms[made.instances[SHORT].digest], Batch)


def test_a_form_that_names_another_text_gives_way_to_the_emitted_one(
    objects: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the checksum of the skeleton's entry were right."""
    library = compiler.load([SHORT])
    digest = forms.instance_of(SHORT, host()).digest
    assert objects._folder is not None
    (path,) = objects._folder.glob("*.skeleton")
    skeletons = objects.beside(".skeleton", 2**20)
    body = skeletons.get(path.stem)
    assert body is not None
    (entry,) = json.loads(body)
    other = "0" * 64
    skeletons.put(path.stem, json.dumps([[other, *entry[1:]]]).encode())
    for each in objects._folder.glob("*.forms"):
        each.unlink()
    forget(monkeypatch)
    assert compiler.load([SHORT]).form(SHORT).words == library.form(SHORT).words
    assert not objects_of(objects, other)
    assert forms.instance_of(SHORT, host()).digest == digest
    assert skeletons.get(path.stem) == body


def test_an_entry_that_names_no_object_is_written_anew(
    objects: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.load([SHORT])
    assert objects._folder is not None
    (path,) = objects._folder.glob("*.forms")
    entries = objects.beside(".forms", 2**20)
    body = entries.get(path.stem)
    assert body is not None
    entries.put(path.stem, bytes(32) + body[32:])
    forget(monkeypatch)
    assert compiler.load([SHORT]).compiled == 0
    assert entries.get(path.stem) == body


def test_of_the_texts_that_wait_the_longest_is_compiled_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_threads, "usable_cores", lambda: 1)
    monkeypatch.setattr(compile_threads, "compile_text", lambda text, target: text.encode())
    texts = {"b": "22", "none": None, "c": "333", "a": "1"}
    made = list(compile_threads.compiled(iter(texts.items()), len(texts), host()))
    assert made == [("none", None), ("c", b"333"), ("b", b"22"), ("a", b"1")]
