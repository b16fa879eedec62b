"""Settings of the user from outside a program. Nothing else reads the environment.

A setting changes where and how leanconv works on this machine, never what is computed: that is
said by the arguments of `load`, `conv2d` and `plan_conv2d`, which win over a setting.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from leanconv.errors import SpecError, short
from leanconv.records import dataclass
from leanconv.units import parse_bytes

log = logging.getLogger(__name__)

_PREFIX = "LEANCONV_"
_TRUE = frozenset({"1", "true", "yes", "on"})
MOST_THREADS = 1024
_MOST_SPIN_US = 60_000_000  # a minute
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True)
class Settings:
    """Every setting, with the environment variable that sets it.

    Attributes:
        cache_dir: the folder of compiled code, of what the model chose for networks and of tuning
            results. `LEANCONV_CACHE_DIR`; by default `leanconv` in the user's cache folder. Made on
            first use, with mode 0700. What it holds is run: a folder that others may write, there
            or above, is not used (a warning says so).
        cache_bytes: the most that compiled code may take there, for CPUs and for GPUs each
            (choices, plans and tuning results take up to 16 MiB each); the oldest entries go first.
            `LEANCONV_CACHE_BYTES`, a number or text such as `256 MiB`; 0 disables the cache.
        weight_cache_bytes: the most that packed weights which processes share may take in a folder
            (`shared_weights` of `load`); the files used longest ago go first.
            `LEANCONV_WEIGHT_CACHE_BYTES`; 0 lets every process have its own in memory.
        snapshot_cache_bytes: the most that snapshots of planned networks may take there; those used
            longest ago go first. With one a process that loads the network again plans nothing.
            `LEANCONV_SNAPSHOT_CACHE_BYTES`; 0 keeps none and uses none.
        plan_cache_bytes: the most that plans kept for later calls may hold: those of `conv2d`
            together, and those of each network for the input shapes seen (the newest is always
            kept). `LEANCONV_PLAN_CACHE_BYTES`.
        output_cache_bytes: the most memory of large outputs (24 MiB and more) that a network, a
            plan, or `conv2d` keeps for its next ones once nothing refers to them; 0 keeps none.
            `LEANCONV_OUTPUT_CACHE_BYTES`.
        threads: threads of a plan for which `threads` was not given; None takes one for each CPU
            that this process may use. `LEANCONV_THREADS`.
        target: the CPU to emit code for, by name (such as `haswell`); None is this machine.
            `LEANCONV_TARGET`.
        spin_us: how long an idle worker waits in a loop before it sleeps, in microseconds.
            `LEANCONV_SPIN_US`.
        debug: log at level DEBUG, and let the command line show tracebacks. `LEANCONV_DEBUG`.
        raise_defects: raise what is a defect of leanconv and would otherwise be a warning, because
            a slower way gives the same results. `LEANCONV_RAISE_DEFECTS`.
        bench_python: another Python interpreter in which `leanconv bench` looks for engines that
            are not installed beside leanconv (torch, executorch). `LEANCONV_BENCH_PYTHON`.
    """

    cache_dir: Path
    cache_bytes: int = 512 * 2**20
    weight_cache_bytes: int = 4 * 2**30
    snapshot_cache_bytes: int = 2**30
    plan_cache_bytes: int = 2**30
    output_cache_bytes: int = 512 * 2**20
    threads: int | None = None
    target: str | None = None
    spin_us: int = 100
    debug: bool = False
    raise_defects: bool = False
    bench_python: str | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables (by default those of this process).

        An empty variable counts as not set; one that is no setting is a warning, once a process.

        Raises:
            SpecError: a variable holds something that cannot be read; the message names it.
        """
        env = os.environ if environment is None else environment
        _warn_of_unknown(env)
        defaults = Settings(cache_dir=_cache_dir(env))
        spin_us = _integer(env, "LEANCONV_SPIN_US", least=0, most=_MOST_SPIN_US)
        return Settings(
            cache_dir=defaults.cache_dir,
            cache_bytes=_bytes(env, "LEANCONV_CACHE_BYTES", defaults.cache_bytes),
            weight_cache_bytes=_bytes(
                env, "LEANCONV_WEIGHT_CACHE_BYTES", defaults.weight_cache_bytes
            ),
            snapshot_cache_bytes=_bytes(
                env, "LEANCONV_SNAPSHOT_CACHE_BYTES", defaults.snapshot_cache_bytes
            ),
            plan_cache_bytes=_bytes(env, "LEANCONV_PLAN_CACHE_BYTES", defaults.plan_cache_bytes),
            output_cache_bytes=_bytes(
                env, "LEANCONV_OUTPUT_CACHE_BYTES", defaults.output_cache_bytes
            ),
            threads=_integer(env, "LEANCONV_THREADS", least=1, most=MOST_THREADS),
            target=env.get("LEANCONV_TARGET") or None,
            spin_us=defaults.spin_us if spin_us is None else spin_us,
            debug=_switch(env, "LEANCONV_DEBUG"),
            raise_defects=_switch(env, "LEANCONV_RAISE_DEFECTS"),
            bench_python=env.get("LEANCONV_BENCH_PYTHON") or None,
        )


@functools.cache
def current_settings() -> Settings:
    """The settings of this process, read from its environment once."""
    return Settings.from_environment()


def variables() -> tuple[str, ...]:
    """The names of all environment variables that are read."""
    return tuple(f"{_PREFIX}{field.name.upper()}" for field in fields(Settings))


def _warn_of_unknown(env: Mapping[str, str]) -> None:
    known = variables()
    for name in sorted(env):
        if name.upper().startswith(_PREFIX) and name not in known:
            _warn(name)


@functools.cache  # once for each name
def _warn(name: str) -> None:
    import difflib  # 3 ms that nobody waits for whose variables are all settings

    known = variables()
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)
    log.warning(
        "the environment variable %s is no setting of leanconv and changes nothing; did you mean "
        "%s? There are %s",
        short(name),
        near[0],
        ", ".join(known),
    )


def _cache_dir(env: Mapping[str, str]) -> Path:
    given = env.get("LEANCONV_CACHE_DIR")
    try:
        return Path(given).expanduser() if given else _default_cache_dir(env)
    except RuntimeError as error:
        raise SpecError(
            f"environment variable LEANCONV_CACHE_DIR is {given!r}, and the home folder is not "
            f"known ({error}); expected a folder by its absolute path"
        ) from error


def _default_cache_dir(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / "leanconv" / "cache"
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "leanconv"
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else home / ".cache") / "leanconv"


def _bytes(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        return parse_bytes(text)
    except SpecError as error:
        raise SpecError(f"environment variable {name}: {error}") from error


def _integer(env: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = env.get(name)
    if not text:
        return None
    number = int(text) if text.strip().isdecimal() and len(text) < 100 else -1
    if not least <= number <= most:
        raise SpecError(
            f"environment variable {name} is {short(text)}; expected an integer from {least} to "
            f"{most}, or unset it"
        )
    return number


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise SpecError(f"environment variable {name} is {text!r}; expected 1 or 0, or unset it")
    return text in _TRUE
