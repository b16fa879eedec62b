"""Facts about this machine, and whether others are using it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import leanconv
from leanconv.records import dataclass
from leanconv.settings import current_settings

_APART = 0.8  # share of its own core that a thread must have
_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """The facts that a measurement cannot be read without (never the host's name).

    Attributes:
        cpu: the model as the system names it, and the one whose code is made if it is another.
        features: the vector extensions that matter to convolution.
        usable_cpus: how many CPUs this process may use.
        system: operating system and architecture.
        python: the version of the interpreter.
        time_utc: when the measurement began.
        leanconv: its version.
        commit: of the checkout that leanconv runs from, with "+changes" where files differ from it
            (other than results, which are written while others are measured); None outside one.
    """

    cpu: str
    features: tuple[str, ...]
    usable_cpus: int
    system: str
    python: str
    time_utc: str
    leanconv: str
    commit: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON's types."""
        return asdict(self)


def describe() -> Machine:
    """Describe this machine, now."""
    facts = _cpuinfo()
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")
    family = "/".join(facts[k] for k in ("cpu family", "model") if k in facts)
    name = facts.get("model name", platform.processor() or "unknown")
    cpu = f"{name} (family/model {family})" if family else name
    target = current_settings().target
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        cpu=f"{cpu} as {target}" if target else cpu,
        features=tuple(flag for flag in known if flag in flags),
        usable_cpus=usable or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        time_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        leanconv=leanconv.__version__,
        commit=commit(),
    )


def commit(file: Path = Path(__file__)) -> str | None:
    """Return the commit of the git checkout that tracks a file, None if none does.

    A file that lies inside a checkout without being tracked, as in a virtual environment there,
    says nothing about that checkout's commit.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", file.name)
        found = git("rev-parse", "--short=10", "HEAD")
        code = (":(top)", ":(top,exclude)docs/results")
        return found + ("+changes" if git("status", "--porcelain", "-uno", "--", *code) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def busy_cpus(seconds: float = 0.5) -> float:
    """Return how many CPUs the whole machine kept busy while this process slept.

    Time that a hypervisor gave to others counts as busy. Where the system does not tell, the load
    average of the last minute is used instead.
    """
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    if before is None or after is None or after[1] == before[1]:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    share = (after[0] - before[0]) / (after[1] - before[1])
    return share * (os.cpu_count() or 1)


def wait_until_quiet(limit_cpus: float = 0.1, patience_s: float = 60.0) -> float:
    """Wait until fewer than `limit_cpus` CPUs are busy, at most `patience_s`; return the last."""
    end = time.monotonic() + patience_s
    while True:
        busy = busy_cpus()
        if busy < limit_cpus or time.monotonic() >= end:
            return busy


def wait_for_cores(threads: int, patience_s: float = 5.0) -> bool:
    """Wait until as many threads really have cores of their own; return whether they have.

    The cores of a virtual machine may become halves of one core for seconds at a time: whoever is
    measured then takes twice as long.
    """
    from leanconv.runtime.calibration import speedup  # with it comes the compiler: not for `--help`

    end = time.monotonic() + patience_s
    while speedup(threads) < _APART * threads:
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


def _cpu_ticks() -> tuple[int, int] | None:
    """Return (busy, all) ticks of all CPUs since the start of the system."""
    try:
        fields = [int(f) for f in _STAT.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return sum(fields) - sum(fields[3:5]), sum(fields)


def _cpuinfo() -> dict[str, str]:
    try:
        first = _CPUINFO.read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
