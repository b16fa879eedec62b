"""Objects that earlier sessions of tests compiled, by what they were compiled from.

leanconv's own cache is keyed by its sources: after a change of a generator, every kernel is emitted
and compiled anew, though most texts are what they were. Here the key is the text itself, with all
else that LLVM's answer depends on. A session takes what an equal text gave; one that is changed is
compiled. Nothing in `src` knows of this: the module of the compiler is changed as it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leanconv.target import Target

VARIABLE = "TEST_OBJECTS"  # a folder; empty does without
MOST_BYTES = 512 * 2**20  # a tree's objects have some 70 MiB
_DIGEST = hashlib.sha256().digest_size
_NAMED = re.compile(r"@k([0-9a-f]{40})\(")
_ANY_NAME = hashlib.sha1(b"any name").hexdigest()  # in place of a key, as long as one
_ENTRY = re.compile(r"[0-9a-f]{64}(\.part\d+_\d+)?")
_DAY_S = 86400
_left_out = 0  # how many want LLVM itself


def chosen_folder() -> Path | None:
    """Of the session: named by the environment, else in the user's cache; None to do without.

    It is named in the environment from then on: tests change where the user's cache is.
    """
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(given or Path(cache) / "leanconv-tests" / "objects").absolute()
    os.environ[VARIABLE] = str(folder)
    return folder


def why_not(folder: Path) -> str:
    """Why a folder cannot hold objects, which are run; "" if it can. It is made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        return f"{folder} belongs to another user, or others may write it"
    return ""


def install(module: ModuleType, folder: Path) -> None:
    """Have `compile_text` of `leanconv.codegen.machine_code` look into a folder first.

    The functions' names are the keys of leanconv's cache, which another machine or another state of
    the sources has others of: they are put in place of one another, in the text and in the object.
    """
    compiled = module.compile_text
    versions = _versions(module)

    @functools.wraps(compiled)
    def compile_text(text: str, target: Target) -> bytes:
        if _left_out or why_not(folder):  # a test may be another user
            return bytes(compiled(text, target))
        module.require_for_compiling(text)  # as where it is compiled
        named = _NAMED.search(text)
        name = named[1] if named else _ANY_NAME
        facts = versions, target.cpu, target.features, target.triple, text.replace(name, _ANY_NAME)
        file = folder / hashlib.sha256(repr(facts).encode()).hexdigest()
        body = _read(file)
        if body is None:
            made = bytes(compiled(text, target))
            _write(file, made.replace(name.encode(), _ANY_NAME.encode()))
            return made
        return body.replace(_ANY_NAME.encode(), name.encode())

    module.compile_text = compile_text


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Let LLVM compile whatever this process compiles meanwhile."""
    global _left_out
    _left_out += 1
    try:
        yield
    finally:
        _left_out -= 1


def keep_within(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the objects that were not used for longest, and what killed sessions left unfinished.

    Args:
        folder: of the objects; it may be absent. Files of other names stay.
        most_bytes: that the rest may have together.
    """
    kept, now = [], time.time()
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            named = _ENTRY.fullmatch(entry.name)
            if named is None:
                continue
            with contextlib.suppress(FileNotFoundError):  # another session's end
                facts = entry.stat(follow_symlinks=False)
                unfinished = named[1] and facts.st_mtime < now - _DAY_S
                kept.append((0 if unfinished else facts.st_mtime, facts.st_size, entry.path))
    total = sum(size for _, size, _ in kept)
    for used, size, path in sorted(kept):
        if total <= most_bytes and used:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size


def _versions(module: ModuleType) -> tuple[object, ...]:
    """What makes objects of texts: LLVM, and the options that `machine_code` gives it."""
    from llvmlite import __version__, binding

    source = Path(module.__file__ or "").read_bytes()
    return __version__, binding.llvm_version_info, hashlib.sha256(source).hexdigest()


def _read(file: Path) -> bytes | None:
    """A whole entry's object; None if there is none or it is damaged."""
    try:
        data = file.read_bytes()
        if time.time() - file.stat().st_mtime > _DAY_S:
            os.utime(file)
    except OSError:
        return None
    body = data[_DIGEST:]
    return body if data[:_DIGEST] == _checksum(file.name, body) else None


def _write(file: Path, body: bytes) -> None:
    """Keep an object whole or not at all; where there is no room for it, not at all."""
    part = file.with_name(f"{file.name}.part{os.getpid()}_{threading.get_ident()}")
    try:
        part.write_bytes(_checksum(file.name, body) + body)
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()


def _checksum(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + body).digest()
