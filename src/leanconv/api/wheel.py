"""A wheel of a compiled network: `pip install` it where there is NumPy, and no leanconv."""

from __future__ import annotations

import hashlib
import keyword
import os
import re
import sysconfig
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanconv.errors import SpecError
from leanconv.runtime import shared_library
from leanconv.units import shape_text

_FILE = re.compile(r"(?P<name>[A-Za-z_]\w*)-(?P<version>\d+(\.\d+)*((a|b|rc)\d+)?)\.whl", re.ASCII)
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)")
_OLDEST_GLIBC = 17  # of 2.17, from which on pip reads the names of wheels that say a version
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same network gives the same bytes

_PACKAGE = '''\
"""A network that leanconv compiled for {target}. It needs NumPy.

    import {package}

    net = {package}.load()
    found = net.run({{{arrays}}})

{ports}
"""

from pathlib import Path

from {package}.shared_library import SharedLibrary

__version__ = "{version}"


def load():
    """Open the network, with memory of its own; see `SharedLibrary`."""
    return SharedLibrary(Path(__file__).with_name("{library}"), "{name}")
'''
_METADATA = """\
Metadata-Version: 2.1
Name: {package}
Version: {version}
Summary: A network that leanconv compiled for {target}
Requires-Python: >=3.10
Requires-Dist: numpy
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: leanconv
Root-Is-Purelib: false
Tag: {tag}
"""


def wheel_name(path: Path) -> tuple[str, str]:
    """Return the package and the version that a wheel's name says, as `net-1.0.whl`.

    Raises:
        SpecError: it is no such name.
    """
    found = _FILE.fullmatch(path.name)
    if found is None or keyword.iskeyword(found["name"]):
        raise SpecError(
            f"got out={str(path)!r}; expected NAME-VERSION.whl as in net-1.0.whl, where NAME is "
            "that of a Python package"
        )
    return found["name"], found["version"]


def write_wheel(
    out: Path,
    path: Path,
    library: Path,
    weights: bytes | bytearray | None,
    facts: Mapping[str, Any],
) -> str:
    """Write a wheel with a library and the module that calls it.

    Args:
        out: the file to write, of any name.
        path: whose name says the package and its version.
        library: linked on this system.
        weights: those that it has in a file beside it, or None.
        facts: its description.

    Returns:
        The name that pip wants the file to have, with the system it is for.
    """
    package, version = wheel_name(path)
    code = library.read_bytes()
    tag = f"py3-none-{_platform(code)}"
    words = {
        "package": package,
        "version": version,
        "name": facts["name"],
        "library": f"lib{facts['name']}{library.suffix}",
        "target": " or ".join(f"{each['cpu']} ({each['isa']})" for each in facts["targets"]),
        "arrays": ", ".join(f"{_quoted(each['name'])}: ..." for each in facts["runs"][0]["inputs"]),
        "ports": "\n".join(map(_ports, facts["runs"])),
        "tag": tag,
    }
    about = f"{package}-{version}.dist-info"
    files = {
        f"{package}/__init__.py": _PACKAGE.format(**words).encode(),
        f"{package}/shared_library.py": Path(shared_library.__file__).read_bytes(),
        f"{package}/{words['library']}": code,
        f"{about}/METADATA": _METADATA.format(**words).encode(),
        f"{about}/WHEEL": _WHEEL.format(**words).encode(),
    }
    if weights:
        files[f"{package}/{facts['weights_file']}"] = bytes(weights)
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    record = f"{about}/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return f"{package}-{version}-{tag}.whl"


def _platform(code: bytes) -> str:
    """Return the tag of the systems that a library runs on.

    Of Linux with glibc it names the oldest version of that whose functions the library calls
    (PEP 600); one that calls none runs wherever those of this system do.
    """
    system = re.sub(r"[-.]", "_", sysconfig.get_platform())
    glibc = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
    if not (system.startswith("linux_") and glibc):
        return system
    oldest = max([_OLDEST_GLIBC, *(int(each) for each in _GLIBC.findall(code))])
    return f"manylinux_2_{oldest}_{system.removeprefix('linux_')}"


def _ports(run: Mapping[str, Any]) -> str:
    """Return a line for a docstring: the inputs and outputs of some shapes."""
    takes, gives = (
        ", ".join(f"{_quoted(e['name'])} {e['dtype']} {shape_text(e['shape'])}" for e in run[ports])
        for ports in ("inputs", "outputs")
    )
    return f"{takes} -> {gives}"


def _quoted(name: str) -> str:
    """Return a file's name so that it can stand in a docstring."""
    return "'" + re.sub(r"[^ -~]|[\"\\]", "?", name) + "'"


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
