"""Whole processes for the tests: what is run in them, and how."""

from __future__ import annotations

import subprocess
import sys

# A little network: every program begins with it.
HEAD = """
import os, sys, threading, time
import numpy as np
import leanconv as lc
from examples.networks import squeezenet_like
model = squeezenet_like(batch=1, image=32).SerializeToString()
x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("f4")
net = lc.load(model, threads=3)

def insist(net):
    # Workers take part however busy the machine is.
    net._current._program._pacing.together = lambda: True
    return net

insist(net)
expected = net(x)
"""


def run_program(body: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program after `HEAD` in a process of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    return subprocess.run(
        [sys.executable, "-c", HEAD + body],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "HOME": home()},
    )


def home() -> str:
    """The user's home, where the object cache is."""
    from pathlib import Path

    return str(Path.home())


def lines(body: str, seconds: float = 60) -> list[str]:
    """The lines that a program prints; it must end with exit code 0 and say no more."""
    result = run_program(body, seconds)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()
