"""What LLVM says of itself and of this processor, kept on disk: to ask it, it must be loaded."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from leanconv.codegen import backend
from leanconv.codegen.cache import entries_in
from leanconv.codegen.cpuid import processor
from leanconv.codegen.llvm_pages import release_llvm_pages

_STORE_BYTES = 2**20
_FORM = 1  # of an entry


class LLVMFacts(NamedTuple):
    """LLVM's answers.

    Attributes:
        version: llvmlite's and LLVM's.
        cpu: LLVM's name of this processor.
        features: whether it has each, as LLVM takes them: "+avx2,-sse4a".
        triple: of this process.
    """

    version: str
    cpu: str
    features: str
    triple: str

    @property
    def has(self) -> Mapping[str, bool]:
        """Whether the processor has a feature, by LLVM's name."""
        signs = (each for each in self.features.split(",") if each)
        return {each[1:]: each.startswith("+") for each in signs}


@functools.cache
def llvm_facts() -> LLVMFacts:
    """LLVM's answers, from disk where the same library was asked on such a processor before."""
    key = _key()
    if key is None:
        return asked()
    store = entries_in("machine", _STORE_BYTES)
    body = store.get(key)
    if body is not None:
        try:
            found = LLVMFacts(**json.loads(body))
        except (ValueError, TypeError, RecursionError):
            store.refuse(key)
        else:
            if all(isinstance(each, str) for each in found):
                return found
    facts = asked()
    store.put(key, json.dumps(facts._asdict()).encode())
    return facts


def asked() -> LLVMFacts:
    """LLVM's answers, from LLVM itself."""
    llvm = backend.llvm
    facts = LLVMFacts(
        f"{backend.llvmlite.__version__} {llvm.llvm_version_info}",
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        llvm.get_process_triple(),
    )
    release_llvm_pages()
    return facts


def _key() -> str | None:
    """What the answers follow from; None where that cannot be told."""
    chip, spec = processor(), importlib.util.find_spec("llvmlite")
    if chip is None or spec is None or spec.submodule_search_locations is None:
        return None
    found = []
    for folder in spec.submodule_search_locations:
        for file in Path(folder, "binding").glob("*llvmlite.*"):
            status = os.stat(file)
            found.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    text = repr((_FORM, backend.version(), sorted(found), chip))
    return hashlib.sha256(text.encode()).hexdigest()[:40] if found else None
