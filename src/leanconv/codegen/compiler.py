"""Kernels to addresses: emit, compile or fetch from the cache, load into this process.

The code of all kernels that a range of shapes needs is there before they are called (`CodeAhead`).
Which forms a range has is found once, from the kernels of all its shapes, and kept on disk: an
entry names the objects, 40 digits each. Later processes load them without a look at the kernels.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from leanconv.codegen import known_forms
from leanconv.codegen.backend import release_llvm_pages
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compile_threads import compiled
from leanconv.codegen.forms import Instance, emitted_instance, instance_of, known_instance
from leanconv.codegen.host import check_runs_here, host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import choice_key, key_of
from leanconv.codegen.known_forms import known_instances, remember
from leanconv.codegen.linking import (
    Batch,
    KernelForm,
    Library,
    form_of,
    link,
    load_forms,
    loaded,
    lock,
    symbol_of,
)
from leanconv.codegen.machine_code import compile_text
from leanconv.errors import memory_reported
from leanconv.interrupts import check_not_within
from leanconv.progress import count_kernels, spending, step
from leanconv.records import dataclass
from leanconv.settings import current_settings
from leanconv.target import Target


@functools.cache
def object_cache() -> DiskCache:
    """The cache of compiled forms."""
    settings = current_settings()
    folder = settings.cache_dir / "objects" if settings.cache_bytes else None
    return DiskCache(folder, settings.cache_bytes)


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
    with lock, spending("code"):
        library = _library(list(dict.fromkeys(kernels)), wanted)
        release_llvm_pages()
        count_kernels(library.forms, library.compiled)
        return library


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
        release_llvm_pages()
        return Library({name: (batch, name) for name in names}, {})


# -- from kernels to a library: four steps, each from data to data -------------------------------
Emission: TypeAlias = "tuple[Kernel, Instance, str | None]"
_Found: TypeAlias = "tuple[Kernel, Instance, Batch | bytes | None]"


@dataclass(frozen=True)
class Code:
    """Kernels, and the code that there is of their forms.

    Attributes:
        instances: each kernel as an instance of its form.
        forms: the batch in which each form is loaded, or its object, by the digest of its text.
        compiled: number of the objects that were compiled now.
    """

    instances: Mapping[Kernel, Instance]
    forms: Mapping[str, Batch | bytes]
    compiled: int = 0

    def __or__(self, other: Code) -> Code:
        return Code(
            {**self.instances, **other.instances},
            {**self.forms, **other.forms},
            self.compiled + other.compiled,
        )


def find(kernels: Sequence[Kernel], target: Target) -> tuple[Code, bool]:
    """The kernels whose forms are known and whose code is loaded in this process or on disk.

    Returns:
        Their code, and whether the next process that loads these kernels finds them all.
    """
    known, kept = known_instances(kernels, target, object_cache())
    forms = _present((instance.digest for instance in known.values()), target)
    present = {kernel: each for kernel, each in known.items() if each.digest in forms}
    return Code(present, forms), kept and len(present) == len(kernels)


def emit(kernels: Iterable[Kernel], target: Target) -> Iterator[Emission]:
    """Emit kernels one by one: each as an instance of its form, the form's LLVM IR once."""
    emitted: set[str] = set()
    for kernel in kernels:
        instance, text = known_instance(kernel, target), None
        if instance is None or instance.digest not in emitted:
            instance, text = emitted_instance(kernel, target)
        yield kernel, instance, None if instance.digest in emitted else text
        emitted.add(instance.digest)


@dataclass(frozen=True)
class EmittedForms:
    """Kernels as LLVM IR, of which nothing is compiled yet.

    Attributes:
        instances: what each kernel is of which form.
        texts: of the forms, by the names of their functions.
        symbols: the name of each form's function, by the form's digest.
    """

    instances: Mapping[Kernel, Instance]
    texts: Mapping[str, str]
    symbols: Mapping[str, str]

    def form(self, kernel: Kernel) -> KernelForm:
        """Return what a program needs of a kernel."""
        return form_of(kernel, self.instances[kernel])


def emitted_forms(kernels: Iterable[Kernel], target: Target) -> EmittedForms:
    """Emit kernels for any target, to be compiled together with others."""
    instances, texts, symbols = {}, {}, {}
    for kernel, instance, text in emit(dict.fromkeys(kernels), target):
        instances[kernel] = instance
        if text is not None:
            key = key_of(instance.digest, target)
            symbols[instance.digest] = symbol = symbol_of(key)
            texts[symbol] = _named_text(key, text)
    return EmittedForms(instances, texts, symbols)


def compile_emitted(emissions: Iterable[Emission], most: int, target: Target) -> Code:
    """Compile on all cores, while kernels are being emitted, the texts of which there is no code.

    Args:
        emissions: of different kernels.
        most: number of kernels to load, which are the steps of the reported progress.
        target: what to compile for.
    """
    instances: dict[Kernel, Instance] = {}
    forms: dict[str, Batch | bytes] = {}
    done = 0
    with contextlib.closing(
        compiled(_absent(emissions, most, target), most, target)
    ) as results:  # and its threads ended, whatever comes
        for (kernel, instance, code), body in results:
            instances[kernel] = instance
            if body is not None:
                done += 1
                object_cache().put(key_of(instance.digest, target), body)
                step("compiling kernels", done, most)
            found = code if body is None else body
            if found is not None:
                forms[instance.digest] = found
    if 0 < done < most:  # several kernels had one form
        step("compiling kernels", most, most)
    return Code(instances, forms, done)


def _absent(
    emissions: Iterable[Emission], most: int, target: Target
) -> Iterator[tuple[_Found, str | None]]:
    """Kernels with the code that there is of their texts, or with the texts to compile.

    Progress stays at 0 meanwhile.
    """
    for kernel, instance, text in emissions:
        code = None
        if text is not None:
            code = _present([instance.digest], target).get(instance.digest)
        if text is None or code is not None:
            yield (kernel, instance, code), None
        else:
            step("compiling kernels", 0, most)
            yield (kernel, instance, None), _named_text(key_of(instance.digest, target), text)


def link_code(code: Code, target: Target) -> Library:
    """Load the code of kernels into this process: code that is not there yet as one batch."""
    keys = {digest: key_of(digest, target) for digest in code.forms}
    batches = {each: form for each, form in code.forms.items() if isinstance(form, Batch)}
    objects = {each: form for each, form in code.forms.items() if isinstance(form, bytes)}
    if objects:
        batch = load_forms({keys[digest]: body for digest, body in objects.items()})
        batches |= dict.fromkeys(objects, batch)
    used = {instance.digest for instance in code.instances.values()}
    places = {digest: (batches[digest], symbol_of(keys[digest])) for digest in used}
    return Library(places, code.instances, code.compiled)


def _library(kernels: Sequence[Kernel], target: Target) -> Library:
    """Kernels that all differ, loaded into this process."""
    code, kept = find(kernels, target)
    absent = [kernel for kernel in kernels if kernel not in code.instances]
    if absent:
        code |= compile_emitted(emit(absent, target), len(kernels), target)
    if not kept:
        instances = {kernel: code.instances[kernel] for kernel in kernels}
        remember(instances, absent, target, object_cache())
    return link_code(code, target)


def _present(digests: Iterable[str], target: Target) -> dict[str, Batch | bytes]:
    """The code of forms that is in this process, else its objects on disk."""
    keys = {digest: key_of(digest, target) for digest in digests}
    found: dict[str, Batch | bytes] = {}
    for digest, key in keys.items():
        batch = loaded(key)
        if batch is not None:
            found[digest] = batch
    missing = {key: digest for digest, key in keys.items() if digest not in found}
    if missing:
        objects = object_cache().get_all(missing)
        found |= {missing[key]: body for key, body in objects.items()}
    return found


def _batches(keys: Sequence[str]) -> dict[str, Batch] | None:
    """The batches that have the code of forms, by key, loaded now if it is on disk; else None."""
    with lock:
        found = {key: batch for key in keys if (batch := loaded(key)) is not None}
        missing = [key for key in keys if key not in found]
        objects = object_cache().get_all(missing)
        if len(objects) < len({*missing}):
            return None
        if objects:
            found |= dict.fromkeys(objects, load_forms(objects))
        return found


@memory_reported("loading kernels")
def fetched(digests: Sequence[str], target: Target) -> Library | None:
    """Load the code of forms without a look at their kernels.

    Args:
        digests: of their texts.
        target: for which they were emitted; it must be able to run here.

    Returns:
        The library; None where code is neither in this process nor in the cache.
    """
    check_runs_here(target)
    check_not_within(lock, "the compilation of kernels")
    with spending("code"):
        keys = {digest: key_of(digest, target) for digest in digests}
        found = _batches([*keys.values()])
        if found is None:
            return None
        count_kernels(len(keys), 0)
        places = {digest: (found[key], symbol_of(key)) for digest, key in keys.items()}
        return Library(places, {})


def _named_text(key: str, text: str) -> str:
    return text.replace(f"@{Kernel.NAME}(", f"@{symbol_of(key)}(", 1)


_MOST_BYTES = 4 * 2**20  # of all entries
_DIGITS = 40


class CodeAhead:
    """Code that stays loaded as long as this is kept.

    Args:
        target: what to compile for.

    Attributes:
        forms, compiled: numbers of the range's forms, and of those compiled for it.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kernels: dict[str, Kernel] = {}  # one of each form
        self._kept: list[object] = []
        self.forms = self.compiled = 0

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Take note of the forms of kernels."""
        with lock:
            for kernel in kernels:
                digest = instance_of(kernel, self._target).digest
                self._kernels.setdefault(digest, kernel)
            self.forms = len(self._kernels)

    def compile(self, description: str) -> None:
        """Compile missing code, load all of it, and keep the range's list of forms on disk."""
        library = load(list(self._kernels.values()), self._target)
        self._kept.append(library)
        self.compiled = library.compiled
        keys = [key_of(digest, self._target) for digest in self._kernels]
        _ranges().put(choice_key(description, self._target), "".join(keys).encode())

    def fetch(self, description: str) -> bool:
        """Load the code of a range that was compiled before; return whether all of it was found."""
        body = _ranges().get(choice_key(description, self._target))
        if body is None or len(body) % _DIGITS:
            return False
        digits = body.decode("ascii", "replace")
        keys = [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
        found = _batches(keys)
        if found is None:
            return False
        self._kept += set(found.values())
        self.forms = len(keys)
        return True


@functools.cache
def _ranges() -> DiskCache:
    return object_cache().beside(".range", _MOST_BYTES)


def described(kernels: Sequence[Kernel]) -> str:
    """Return the text that the forms of a range's ends depend on, besides target and generator."""
    return known_forms.description(kernels) or ""
