"""`leanconv run --tiled`, killed with -9 at random moments and run again: is it the same file?

    python benchmarks/kill_tiles.py unet.onnx scene.npy --kills 50 --ends .npy .zarr .tif

For each end of a name, the result of a run that is not killed is compared, byte by byte, to that of
a run that is killed as often as said, each time at a random moment, and begun again by the same
command. Each run is a process of its own, a fork of this one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from leanconv.api import tile_run
from leanconv.cli.main import main as leanconv


def killed_runs(
    model: str, image: str, folder: Path, end: str, kills: int, options: Sequence[str] = ()
) -> list[int]:
    """Run in tiles, with kills and without.

    Args:
        model, image: what is run.
        folder: for the results.
        end: of the results' names.
        kills: how many.
        options: more of `leanconv run`.

    Returns:
        For each kill, how many tiles its journal says are finished; -1 where there is none.

    Raises:
        SystemExit: the results differ, or a run failed.
    """
    command = ["run", model, "--tiled", image, "--threads", "1", "--json", *options, "--out"]
    # Of one name: an OME-Zarr image keeps its own.
    whole, cut = (folder / name / f"result{end}" for name in ("whole", "cut"))
    for path in (whole, cut):
        path.parent.mkdir()
    found: list[int] = []
    _ended(_started([*command, str(whole)]))
    _remove(whole)
    begin = time.monotonic()
    _ended(_started([*command, str(whole)]))  # everything is compiled: as long as those that follow
    longest = time.monotonic() - begin
    journal = Path(f"{cut}.tiles")
    while len(found) < kills:
        child = _started([*command, str(cut)])
        time.sleep(random.uniform(0, 0.9 * longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
            found.append(lines - 1)
            if cut.exists() and not journal.exists():
                _remove(cut)  # it was done, and is not overwritten
        elif os.WEXITSTATUS(status):
            raise SystemExit(f"a run that goes on ended with {os.WEXITSTATUS(status)}")
        else:
            _remove(cut)  # it was done before it was killed: begin anew
    _ended(_started([*command, str(cut)]))
    if digest(whole) != digest(cut):
        raise SystemExit(f"{cut} differs from {whole}")
    return found


def digest(path: Path) -> str:
    """Of a file, or of all files of a folder with their names."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = sha256()
    for file in files:
        found.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
        with file.open("rb") as opened:
            while part := opened.read(1 << 24):
                found.update(part)
    return found.hexdigest()


def _started(command: Sequence[str]) -> int:
    """The number of a process that runs a command of leanconv, and notes tiles soon."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        tile_run._SECONDS = 0
        code = leanconv(list(command))
    finally:
        os._exit(code)


def _ended(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a run ended with the status {status}")


def _remove(path: Path) -> None:
    for each in sorted(path.rglob("*"), reverse=True) if path.is_dir() else []:
        each.rmdir() if each.is_dir() else each.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("image")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ends", nargs="+", default=[".npy", ".zarr", ".tif"])
    parser.add_argument("--memory-limit", default="64MiB")
    parser.add_argument("--folder", help="for the results, which are removed (default: a new one)")
    given = parser.parse_args(arguments)
    limit = ["--memory-limit", given.memory_limit]
    for end in given.ends:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            found = killed_runs(given.model, given.image, Path(folder), end, given.kills, limit)
        print(f"{end}: {given.kills} kills, finished tiles at each {found}: the same bytes")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
