"""Make an AArch64 Python with what the tests need, to be run by qemu-user on another machine.

    python tests/arm/prepare.py build/aarch64      makes build/aarch64/python, an interpreter

Nothing is installed into this system and nobody needs to be root: apt fetches Debian's or Ubuntu's
arm64 packages with lists of its own, they are unpacked into a folder, and pip adds the wheels that
are published for AArch64. The interpreter is a script that hands its arguments to qemu, so that
processes which the tests start are emulated, too. A folder that is complete, and made for the same
requirements, is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "zlib1g")
# Of the extra `dev`, what runs tests, and not what checks style or needs a GPU.
WHEELS = ("hypothesis", "onnx", "pillow", "pytest")
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")
TOOLS = {
    "qemu-aarch64": "apt-get install qemu-user",
    "apt-get": "use Debian or Ubuntu, whose arm64 packages are taken",
    "dpkg-deb": "apt-get install dpkg",
}
_PORTS = "http://ports.ubuntu.com/ubuntu-ports"


class PrepareError(Exception):
    """What is missing, and how to mend it."""


def missing_tools() -> list[str]:
    """What this machine lacks, each with its mend."""
    return [f"{name} is missing: {mend}" for name, mend in TOOLS.items() if not shutil.which(name)]


def run(what: str, command: Sequence[str | Path]) -> str:
    """Run a command and return what it printed.

    Raises:
        PrepareError: it failed; the message ends with its last lines.
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise PrepareError(f"{what} failed ({shlex.join(map(str, command[:2]))} …):\n{last}")
    return done.stdout


def sources(folder: Path) -> list[str]:
    """Options that name apt's sources: the system's, but Ubuntu's arm64 has servers of its own."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    values = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', release, re.MULTILINE))
    if values.get("ID") != "ubuntu":
        return []
    name = values["VERSION_CODENAME"]
    suites = (name, f"{name}-updates", f"{name}-security")
    listed = folder / "sources.list"
    listed.write_text(
        "".join(f"deb {_PORTS} {suite} main universe\n" for suite in suites), encoding="utf-8"
    )
    return ["-o", f"Dir::Etc::SourceList={listed}", "-o", "Dir::Etc::SourceParts=/dev/null"]


def unpack_system(folder: Path) -> Path:
    """Fetch Python and its libraries for arm64; return the root they were unpacked into."""
    apt, root = folder / "apt", folder / "root"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()  # nothing is installed: all that is needed is fetched
    options: list[str] = []
    for option in (
        "APT::Architecture=arm64",
        "APT::Architectures::=arm64",
        f"Dir::State={apt / 'state'}",
        f"Dir::State::status={apt / 'status'}",
        f"Dir::Cache={apt / 'cache'}",
        "Debug::NoLocking=true",
        "APT::Sandbox::User=",
    ):
        options += ["-o", option]
    command = ["apt-get", *options, *sources(apt)]
    run("fetching the lists of arm64 packages", [*command, "update"])
    run(
        "fetching arm64 packages",
        [*command, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES],
    )
    root.mkdir()
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run("unpacking", ["dpkg-deb", "--extract", package, root])
    shutil.rmtree(apt)
    return root


def add_wheels(root: Path) -> None:
    """Add the wheels of the package's requirements and of the tests', and the package itself."""
    version = interpreter(root).name.removeprefix("python")
    packages = root / "usr/local/lib" / f"python{version}" / "dist-packages"
    packages.mkdir(parents=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    run(
        "fetching wheels for AArch64",
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--target", packages),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", version),
            *platforms,
            *requirements(),
        ],
    )
    (packages / "leanconv.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")


def requirements() -> list[str]:
    """What pyproject.toml asks for: the package's own requirements, and the tests' of `dev`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    own = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert own, "pyproject.toml states no dependencies"
    found = re.findall(r'"([^"]+)"', own[1])
    for name in WHEELS:
        found += re.findall(rf'"({name}(?:-\w+)?[>=][^"]*)"', text)
    return sorted(set(found))


def interpreter(root: Path) -> Path:
    """The Python of a root."""
    (found,) = (p for p in (root / "usr/bin").glob("python3.*") if p.name[8:].isdigit())
    return found


def write_script(folder: Path, final: Path) -> None:
    """Write what runs the emulated Python; its path is what `sys.executable` says there."""
    root = final / "root"
    python = root / interpreter(folder / "root").relative_to(folder / "root")
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n"
        f"export PYTHONHOME={shlex.quote(str(root / 'usr'))}\n"
        f"exec qemu-aarch64 -0 {shlex.quote(str(final / 'python'))} -L {shlex.quote(str(root))} "
        f'{shlex.quote(str(python))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


def prepare(final: Path) -> Path:
    """Make the folder, unless it is there; return the interpreter.

    Raises:
        PrepareError: something is missing or cannot be fetched.
    """
    wanted = hashlib.sha256(Path(__file__).read_bytes() + repr(requirements()).encode()).hexdigest()
    stamp, python = final / "complete", final / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    if missing := missing_tools():
        raise PrepareError("; ".join(missing))
    folder = final.with_name(f"{final.name}.{os.getpid()}")
    shutil.rmtree(final, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        add_wheels(unpack_system(folder))
        write_script(folder, final)
        (folder / "complete").write_text(wanted, encoding="utf-8")
        folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = run("starting it", [python, "-c", "import platform, numpy; print(platform.machine())"])
    if said.strip() != "aarch64":
        raise PrepareError(f"the emulated Python runs on {said.strip()!r}; expected 'aarch64'")
    return python


def main() -> int:
    """Prepare, and print the interpreter's path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to make it")
    try:
        print(prepare(parser.parse_args().folder.resolve()))
    except PrepareError as error:
        print(f"no AArch64 Python: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
