"""Files that commands write: aside first, then renamed, so that nobody sees half of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import numpy as np


@contextmanager
def writing(file: str | Path) -> Iterator[Path]:
    """Give a path to write to, which becomes the file where the block ends well.

    What is there and is no regular file, such as `/dev/stdout`, is written to directly.

    Raises:
        OSError: the file cannot be written; it is left as it was.
    """
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        yield path
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        os.replace(aside, path)
    except OSError as error:
        if error.filename == str(aside):
            error.filename = str(file)
        raise
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def writing_arrays(file: str | Path) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Give a function that adds arrays, by any names, to an .npz file; a name is kept once.

    Raises:
        OSError: the file cannot be written; it is left as it was.
    """
    with writing(file) as aside, ZipFile(aside, "w") as bundle:
        seen: set[str] = set()

        def keep(arrays: Mapping[str, np.ndarray]) -> None:
            for name, array in arrays.items():
                if name not in seen:
                    seen.add(name)
                    with bundle.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)

        yield keep
