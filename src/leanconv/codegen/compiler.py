"""From kernels to addresses: emit, compile or fetch from the cache, load into this process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from leanconv.canonical import canonical_text
from leanconv.codegen import form_entries
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compile_threads import compiled
from leanconv.codegen.form_entries import KnownForm
from leanconv.codegen.forms import (
    adopt,
    emitted,
    extent_count,
    form_of,
    forms_of_skeleton,
    known_form,
)
from leanconv.codegen.host import check_runs_here, host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Batch, Library, link, load_forms, loaded, lock, symbol_of
from leanconv.codegen.machine_code import assembly_text, compile_text
from leanconv.codegen.reentrancy import check_not_within
from leanconv.codegen.sources import choice_hash, object_hash
from leanconv.errors import memory_reported
from leanconv.progress import step
from leanconv.records import dataclass
from leanconv.settings import current_settings
from leanconv.target import Target


def key_of(description: str, target: Target) -> str:
    """The key of what is emitted by these sources for a target."""
    return _key(object_hash(), description, target)


def choice_key(description: str, target: Target) -> str:
    """The key of what these sources choose, plan or measure for a target."""
    return _key(choice_hash(), description, target)


def _key(sources: str, description: str, target: Target) -> str:
    text = f"{sources}\n{_target_text(target)}\n{description}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


_target_text = functools.cache(canonical_text)


@functools.cache
def object_cache() -> DiskCache:
    """The cache of compiled forms."""
    settings = current_settings()
    folder = settings.cache_dir / "objects" if settings.cache_bytes else None
    return DiskCache(folder, settings.cache_bytes)


def assembly(kernel: Kernel, target: Target) -> str:
    """Emit a kernel as assembly for reading: any target, not only this machine's.

    Raises:
        ReentrantCallError: a signal handler calls this while its thread compiles.
    """
    text = kernel.emit(target)
    check_not_within(lock, "the compilation of kernels")
    with lock:  # LLVM makes code outside its own lock, and forks wait for this one
        return assembly_text(text, target)


def _texts(kernels: Sequence[Kernel], target: Target, found: _Found) -> Iterator[tuple[str, str]]:
    """The forms to compile, by key, each emitted when it is taken; the others are in `found`.

    Progress stays at 0 meanwhile.
    """
    forms, kept = _known(kernels, target)
    found.look_for(key_of(form.digest, target) for form in forms.values())
    absent: set[str] = set()
    new: list[Kernel] = []
    for kernel in kernels:
        if kernel in forms and found.has(kernel, forms[kernel], target):
            continue
        emission = form_of(kernel, target)
        forms[kernel] = KnownForm(emission.form.digest, emission.words)
        if emission.text is not None:
            new.append(kernel)
        has = found.has(kernel, forms[kernel], target)
        key = found.keys[kernel]
        if not has and key not in absent:
            absent.add(key)
            step("compiling kernels", 0, len(kernels))
            yield key, _named_text(key, emission.text or emitted(kernel, target)[0])
    if not kept:
        _remember({kernel: forms[kernel] for kernel in kernels}, new, target)


def _known(kernels: Sequence[Kernel], target: Target) -> tuple[dict[Kernel, KnownForm], bool]:
    """The forms that are known without emission, and whether the next process need not ask more.

    That is those that this process has emitted; where a kernel has none, all those of the entry on
    disk, if some process has loaded the same kernels together, else those of its skeleton that are
    on disk.
    """
    found = _known_here(kernels, target)
    if len(found) == len(kernels):
        return found, True
    text = form_entries.description(kernels)
    if text is None:
        return found, False
    entries, key = form_entries.entries_beside(object_cache()), key_of(text, target)
    body = entries.get(key)
    forms = form_entries.unpacked(body, len(kernels)) if body is not None else None
    if forms:
        return dict(zip(kernels, forms, strict=True)), True
    if body is not None:
        entries.refuse(key)
    missing = [kernel for kernel in kernels if kernel not in found]
    _adopt_kept(_skeleton_keys(missing, target), target)
    return found | _known_here(missing, target), False


def _adopt_kept(keys: Mapping[Kernel, str], target: Target) -> None:
    """Take over the forms on disk of kernels' skeletons."""
    skeletons = form_entries.skeletons_beside(object_cache())
    bodies = skeletons.get_all(keys.values())
    for kernel, key in keys.items():
        if key in bodies:
            forms = form_entries.unpacked_forms(bodies[key], extent_count(kernel))
            if forms is None:
                skeletons.refuse(key)
            else:
                adopt(kernel, target, forms)


def _known_here(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, KnownForm]:
    """The forms that this process knows."""
    found = {kernel: known_form(kernel, target) for kernel in kernels}
    return {kernel: KnownForm(e.form.digest, e.words) for kernel, e in found.items() if e}


def _skeleton_keys(kernels: Iterable[Kernel], target: Target) -> dict[Kernel, str]:
    """The keys of the entries of kernels' skeletons, each skeleton once."""
    texts = {form_entries.skeleton_description(kernel): kernel for kernel in kernels}
    return {kernel: key_of(text, target) for text, kernel in texts.items() if text is not None}


def _remember(
    forms: Mapping[Kernel, KnownForm], emitted_now: Sequence[Kernel], target: Target
) -> None:
    """Keep the forms of kernels that were loaded together, and those of new skeletons."""
    text = form_entries.description(list(forms))
    body = form_entries.packed(list(forms.values())) if text is not None else None
    if text is not None and body is not None:
        form_entries.entries_beside(object_cache()).put(key_of(text, target), body)
    skeletons = form_entries.skeletons_beside(object_cache())
    for kernel, key in _skeleton_keys(emitted_now, target).items():
        skeletons.put(key, form_entries.packed_forms(forms_of_skeleton(kernel, target)))


@dataclass
class _Found:
    """Forms of kernels.

    Attributes:
        keys, words: of each kernel.
        batches: in which the code of forms is loaded, by key.
        objects: of those that are not loaded yet, by key.
        sought: keys that were looked for.
        compiled: how many objects were compiled now.
    """

    keys: dict[Kernel, str] = field(default_factory=dict)
    words: dict[Kernel, tuple[int, ...]] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    sought: set[str] = field(default_factory=set)
    compiled: int = 0

    def look_for(self, keys: Iterable[str]) -> None:
        """Look for the code of forms in this process, and for objects in the cache, each once."""
        missing = []
        for key in keys:
            if key not in self.sought:
                self.sought.add(key)
                batch = loaded(key)
                if batch is not None:
                    self.batches[key] = batch
                else:
                    missing.append(key)
        if missing:
            self.objects |= object_cache().get_all(missing)

    def has(self, kernel: Kernel, form: KnownForm, target: Target) -> bool:
        """Note the form of a kernel; whether its code is loaded or its object in the cache."""
        key = key_of(form.digest, target)
        self.keys[kernel], self.words[kernel] = key, form.words
        self.look_for([key])
        return key in self.batches or key in self.objects

    def library(self) -> Library:
        """All kernels, loaded."""
        if self.objects:
            self.batches |= dict.fromkeys(self.objects, load_forms(self.objects))
        places: dict[object, tuple[Batch, str]] = {
            kernel: (self.batches[key], symbol_of(key)) for kernel, key in self.keys.items()
        }
        return Library(places, self.words, self.compiled)


def _find(kernels: Sequence[Kernel], target: Target) -> _Found:
    """The forms of kernels, loaded before, from the cache, or compiled on all cores."""
    found = _Found()
    with contextlib.closing(
        compiled(_texts(kernels, target, found), len(kernels), target)
    ) as bodies:  # and its threads ended, whatever comes
        for done, (key, body) in enumerate(bodies, start=1):
            object_cache().put(key, body)
            found.objects[key], found.compiled = body, done
            step("compiling kernels", done, len(kernels))
    return found


def _named_text(key: str, text: str) -> str:
    return text.replace(f"@{Kernel.NAME}(", f"@{symbol_of(key)}(", 1)


@memory_reported("compiling kernels")
def load(kernels: Sequence[Kernel], target: Target | None = None) -> Library:
    """Compile kernels, or fetch them from the cache, and load them into this process.

    Code that another library has loaded is shared: where that is so of all kernels, neither the
    disk is read nor anything linked.

    Args:
        kernels: any number; equal ones are compiled once.
        target: what to compile for; this machine by default. It must be able to run here.

    Returns:
        The library that gives each kernel's address.

    Raises:
        SpecError: the target's code cannot run here.
        OutOfMemoryError: less memory is left than compiling or linking takes.
        ReentrantCallError: a signal handler calls this while its thread compiles.
    """
    wanted = target or host()
    check_runs_here(wanted)
    check_not_within(lock, "the compilation of kernels")
    with lock:
        return _find(list(dict.fromkeys(kernels)), wanted).library()


@memory_reported("compiling kernels")
def load_text(text: str, names: Sequence[str], description: str) -> Library:
    """Compile and load a hand-written module; `description` names it in the cache."""
    check_not_within(lock, "the compilation of kernels")
    with lock:
        key = key_of(f"{description}\n{text}", host())
        body = object_cache().get(key)
        if body is None:
            body = compile_text(text, host())
            object_cache().put(key, body)
        batch = link({description: body}, names)
        return Library({name: (batch, name) for name in names}, {})
