"""Jobs in a process beside this one: one that fails, crashes or hangs does not lose the others."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from gpu_page import Row

Job = tuple[str, str, Callable[[], Iterator[Row]]]  # part, label, rows
SILENCE = 100.0  # seconds without a line, after which a process is given up
FIRST_SILENCE = 230.0  # of the first one, which compiles


def said(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"[:300]


def perform(
    jobs: Iterable[Job], left: Callable[[], float], skip: int, say: Callable[[Row], None]
) -> None:
    """Do all jobs behind the first `skip`, and say what begins, what was found, what failed."""
    for number, (part, label, job) in enumerate(jobs):
        if number < skip:
            continue
        say({"begins": number, "part": part, "label": label})
        if left() < 5:
            say({"part": part, "row": {"job": label, "skipped": "no time left"}})
            continue
        try:
            for row in job():
                say({"part": part, "row": row})
        except Exception as error:
            say({"part": part, "row": {"job": label, "failure": said(error)}})
    say({"done": True})


def supervised(result: Row, save: Callable[[], None], command: list[str], total_s: float) -> None:
    """Run workers until all jobs are done or the time is over; rows go into the result."""
    end, skip = time.monotonic() + total_s, 0
    while time.monotonic() < end - 10:
        seconds = end - time.monotonic() - 5
        given = [*command, "--skip", str(skip), "--seconds", f"{seconds:.0f}"]
        process = subprocess.Popen(given, stdout=subprocess.PIPE, text=True)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        begun: Row = {}
        reason = ""
        while not reason:
            wait = min(FIRST_SILENCE if skip == 0 else SILENCE, end - time.monotonic())
            try:
                line = lines.get(timeout=max(0.1, wait))
            except queue.Empty:
                reason = f"nothing was heard for {wait:.0f} s"
                break
            if not line:
                reason = f"the process ended with {process.wait()}"
            elif line.startswith("{"):
                said = json.loads(line)
                if "done" in said:
                    process.wait()
                    return
                if "begins" in said:
                    begun = said
                elif "row" in said:
                    result.setdefault(said["part"], []).append(said["row"])
                else:
                    result.update(said)
                save()
        process.kill()
        part, label = begun.get("part", "compile"), begun.get("label", "start")
        result.setdefault(part, []).append({"job": label, "failure": reason})
        skip = begun.get("begins", skip) + 1
        save()


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")
