"""Make a virtual environment of another Python, with what the tests need.

    python tests/pythons/prepare.py 3.13 build/pythons/3.13

The interpreter is the first that starts of `python3.13`, those that pyenv or uv have installed, and
what uv, fetched from PyPI into the folder, finds on the network. Where there is none, a line says
so and the exit code is 3. A folder that is complete, and made for the same requirements, is left as
it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NONE = 3  # exit code: there is no such interpreter


def found(version: str, folder: Path) -> str | None:
    """An interpreter of that version, or None."""
    return next((each for each in candidates(version, folder) if starts(each, version)), None)


def candidates(version: str, folder: Path) -> Iterator[str]:
    """Paths that may be interpreters, those that take time last."""
    named = shutil.which(f"python{version}")
    if named:
        yield named
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    managed = Path.home() / ".local" / "share" / "uv" / "python"
    for pattern in (f"versions/{version}.*", f"cpython-{version}.*"):
        for root in (pyenv, managed):
            yield from (str(each / "bin" / "python3") for each in sorted(root.glob(pattern)))
    uv = shutil.which("uv") or fetched_uv(folder)
    if uv:
        for command in (("find",), ("install",), ("find",)):
            done = subprocess.run(
                [uv, "python", *command, version],
                capture_output=True,
                text=True,
                timeout=120,
                env={**os.environ, "UV_HTTP_TIMEOUT": "20"},
            )
            if command == ("find",) and done.returncode == 0:
                yield done.stdout.strip()


def fetched_uv(folder: Path) -> str | None:
    """uv from PyPI; None where it cannot be had."""
    tools = folder.parent / "uv"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "uv"]
    if not (tools / "bin" / "uv").exists() and subprocess.run(command).returncode:
        return None
    return str(tools / "bin" / "uv")


def starts(path: str, version: str) -> bool:
    """Whether it is an interpreter of that version: others' scripts only say where one is."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def main() -> int:
    version, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    stamp = folder / "made-for"
    made_for = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == made_for and starts(f"{folder}/bin/python", version):
        return 0
    python = found(version, folder)
    if python is None:
        print(
            f"NOT TESTED with Python {version}: there is no such interpreter, and none could be "
            f"fetched; install one (pyenv install {version}, uv python install {version})",
            file=sys.stderr,
        )
        return NONE
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--editable", f"{ROOT}[test]"], check=True)
    stamp.write_text(made_for)
    return 0


if __name__ == "__main__":
    sys.exit(main())
