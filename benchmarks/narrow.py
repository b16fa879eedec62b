"""Run a benchmark as on a CPU with AVX2 alone, where this one has more: engines are held to it.

    python benchmarks/narrow.py networks.py --record networks
    python benchmarks/narrow.py --target haswell quantised.py resnet50

leanconv makes the code of another processor (`LEANCONV_TARGET`). Other engines ask the CPU what it
has, by the instruction `cpuid`. Copies of their libraries are made in `models/narrow`, which have
an instruction of as many bytes there that no CPU has; a library that is preloaded handles the
signal and answers without AVX-512, VNNI, AMX and halves. Results are recorded by both CPUs' names.

What is alike on a real one is the code that runs, ours and theirs. What is not: caches, ports and
clock. x86-64 Linux with a C compiler and binutils; engines of this interpreter alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import HERE, MODELS, ROOT, script
from leanconv.cli.output import progress
from leanconv.errors import InputError

FOLDER = MODELS / "narrow"
PACKAGES = ("onnxruntime", "openvino", "ai_edge_litert", "ncnn", "MNN")
_BESIDE = ("{}.libs", "*{}*.dist-info")  # folders of a package, beside its own
_CPUID, _NONE = b"\x0f\xa2", b"\x0f\x0b"
_SECTION = re.compile(r"\] +\S+ +PROGBITS +(\w+) +(\w+) +(\w+) +\w+ +\w*X")
_ANSWERS = """
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

static void answer(int number, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)r[REG_RIP];
    unsigned leaf = r[REG_RAX], part = r[REG_RCX], a, b, c, d;
    if (code[0] != 0x0f || code[1] != 0x0b) { signal(SIGILL, SIG_DFL); return; }
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7 && part == 0) {
        b &= ~0xdc230000u;  /* AVX-512 F DQ IFMA PF ER CD BW VL */
        c &= ~0x5842u;      /* VBMI VBMI2 VNNI BITALG VPOPCNTDQ */
        d &= ~0x3c0010cu;   /* 4VNNIW 4FMAPS VP2INTERSECT, AMX, FP16 */
    }
    if (leaf == 7 && part == 1) { a &= ~0xa00030u; d = 0; }  /* AVX-VNNI, BF16, AMX-FP16, IFMA */
    if (leaf == 0x24) a = b = c = d = 0;                       /* AVX10 */
    r[REG_RAX] = a; r[REG_RBX] = b; r[REG_RCX] = c; r[REG_RDX] = d;
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGILL, &action, 0);
}
"""


def folders() -> Iterator[Path]:
    """The folders of the engines that this interpreter has."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        package = Path(found.origin).parent
        yield package
        for pattern in _BESIDE:
            dashed = name.replace("_", "?")
            yield from (each for each in package.parent.glob(pattern.format(dashed)))


def hold(library: Path) -> int:
    """Have a library ask the signal's handler in place of the CPU; return at how many places."""
    code = bytearray(library.read_bytes())
    if _CPUID not in code:
        return 0
    headers = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True).stdout
    sections = [[int(n, 16) for n in found] for found in _SECTION.findall(headers)]
    count = 0
    command = ["objdump", "-d", "--no-show-raw-insn", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        assert listing.stdout
        for line in listing.stdout:
            if not line.endswith("\tcpuid\n"):
                continue
            address = int(line.partition(":")[0], 16)
            place = next(at + address - a for a, at, size in sections if a <= address < a + size)
            assert code[place : place + 2] == _CPUID, "the listing is of these bytes"
            code[place : place + 2] = _NONE
            count += 1
    if count:
        library.write_bytes(code)
    return count


def held_engines() -> Path:
    """The folder of the held copies, made unless those of these versions are there.

    Raises:
        InputError: a tool is missing, or no engine is.
    """
    missing = [tool for tool in ("cc", "objdump", "readelf") if shutil.which(tool) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} not found; install a C compiler and binutils")
    sources, done = list(folders()), FOLDER / "done"
    if not sources:
        raise InputError(f"found none of {', '.join(PACKAGES)}; pip install 'leanconv[bench]'")
    versions = "\n".join(source.name for source in sources)
    if done.exists() and done.read_text(encoding="utf-8") == versions:
        return FOLDER
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with progress("holding engines to AVX2") as shown:
        for source in sources:
            shown.say(source.name)
            copy = shutil.copytree(source, FOLDER / source.name)
            for library in Path(copy).rglob("*.so*"):
                hold(library)
    make_answers(FOLDER)
    done.write_text(versions, encoding="utf-8")
    return FOLDER


def make_answers(folder: Path) -> Path:
    """Compile the library that answers for the CPU, into a folder."""
    made, source = folder / "answers.so", folder / "answers.c"
    source.write_text(_ANSWERS, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


def main() -> int:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="znver3", help="whose code leanconv makes")
    parser.add_argument("benchmark", help="a file of this folder")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")
    options = parser.parse_args()
    file = HERE / options.benchmark
    if not file.is_file():
        raise InputError(f"{options.benchmark!r} is no benchmark; expected such as 'networks.py'")
    held = held_engines()
    paths = [held, ROOT / "src", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "LD_PRELOAD": str(held / "answers.so"),
        "LEANCONV_TARGET": options.target,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    command = [sys.executable, str(file), *options.arguments]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    script(main)
