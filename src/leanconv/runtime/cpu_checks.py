"""LLVM IR that finds out whether the processor has what a target's code needs.

x86's processors are asked by an instruction. Those of AArch64 are not asked by programs: Linux and
Android say what they have in a file, and others have what their systems' oldest ones have.

What LLVM IR has no word for is machine code here: LLVM takes assembly for the machine alone that it
runs on.
"""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.codegen.host import ASK, STATES, X86_EXTENSIONS
from leanconv.runtime.shared_library import WRONG_CPU
from leanconv.target import Target
from leanconv.target.systems import architecture, system_of

# x86's features by LLVM's names: leaf and subleaf of `cpuid`, which register, which bit.
_FEATURES = {
    "fma": (1, 0, 2, 12),
    "movbe": (1, 0, 2, 22),
    "f16c": (1, 0, 2, 29),
    "bmi": (7, 0, 1, 3),
    "avx2": (7, 0, 1, 5),
    "bmi2": (7, 0, 1, 8),
    "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17),
    "avx512ifma": (7, 0, 1, 21),
    "avx512cd": (7, 0, 1, 28),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx512vbmi": (7, 0, 2, 1),
    "avx512vbmi2": (7, 0, 2, 6),
    "gfni": (7, 0, 2, 8),
    "vaes": (7, 0, 2, 9),
    "vpclmulqdq": (7, 0, 2, 10),
    "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12),
    "avx512vpopcntdq": (7, 0, 2, 14),
    "avx512fp16": (7, 0, 3, 23),
    "amx-bf16": (7, 0, 3, 22),
    "amx-tile": (7, 0, 3, 24),
    "amx-int8": (7, 0, 3, 25),
    "avxvnni": (7, 1, 0, 4),
    "avx512bf16": (7, 1, 0, 5),
    "lzcnt": (0x80000001, 0, 2, 5),
}
# Bits of XCR0: registers that the system saves; macOS sets those of AVX-512 at their first use.
_SAVED = {"avx512": 0xE6, "avx2": 0x6}
_USUAL = ("fma", "movbe", "f16c", "bmi", "avx2", "bmi2", "lzcnt")
_WIDE = ("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
_TILES = 0x60000  # of XCR0: their shapes and their data


def check_text(number: int, target: Target) -> str:
    """Return `check.NUMBER`, which returns 0 where code for a target can run.

    Args:
        number: of the target among those of a library.
        target: of x86; or of AArch64, where Linux is asked for the extensions.
    """
    bits = sum(_LINUX_BITS.get(name, 0) for name in target.extensions)
    if target.isa in _SAVED:
        body = "".join(_x86_check(target))
    elif bits and target.isa == "neon" and system_of(target.triple) in _LISTING:
        body = _LINUX_CHECK.format(bits=bits)
    else:
        return f"define internal i32 @check.{number}() nounwind {{\n  ret i32 0\n}}\n"
    return (
        f"define internal i32 @check.{number}() nounwind {{\nentry:\n{body}"
        f"right:\n  ret i32 0\nwrong:\n  ret i32 {WRONG_CPU}\n}}\n"
    )


def asking_text(target: Target) -> str:
    """Return the functions by which checks ask the processor or the system."""
    if architecture(target.triple) == "x86_64":
        ask = coded("x86_64_sysvcc void @ask(i32, i32, ptr)", ASK)
        ask += coded("x86_64_sysvcc i64 @states()", STATES)
        linux = system_of(target.triple) == "linux"
        return ask + (coded("x86_64_sysvcc i64 @request_tiles()", _REQUEST_TILES) if linux else "")
    if architecture(target.triple) == "aarch64" and system_of(target.triple) in _LISTING:
        return coded("i64 @system(i64, i64, i64, i64, i64)", _SYSTEM) + _LISTED
    return ""


def _x86_check(target: Target) -> Iterator[str]:
    """Yield a check of features, and of the registers that the system saves."""
    isa, extensions = target.isa, target.extensions
    needed = [*_USUAL, *(_WIDE if isa == "avx512" else ())]
    needed += [each for name in extensions for each in X86_EXTENSIONS.get(name, ())]
    masks: dict[tuple[int, int], list[int]] = {}
    for name in needed:
        leaf, subleaf, register, bit = _FEATURES[name]
        masks.setdefault((leaf, subleaf), [0, 0, 0, 0])[register] |= 1 << bit
    masks.setdefault((1, 0), [0, 0, 0, 0])[2] |= 1 << 27  # the system saves more registers
    yield "  %answer = alloca [4 x i32]\n"
    for number, ((leaf, subleaf), wanted) in enumerate(sorted(masks.items())):
        top = leaf & 0x80000000
        yield (
            f"  call {_ASK}(i32 {_signed(top)}, i32 0, ptr %answer)\n"
            f"  %top{number} = load i32, ptr %answer\n"
            f"  %there{number} = icmp uge i32 %top{number}, {_signed(leaf)}\n"
            f"  br i1 %there{number}, label %leaf{number}, label %wrong\n"
            f"leaf{number}:\n"
            f"  call {_ASK}(i32 {_signed(leaf)}, i32 {subleaf}, ptr %answer)\n"
        )
        for register, mask in enumerate(wanted):
            if mask:
                name = f"{number}.{register}"
                yield (
                    f"  %a{name} = getelementptr i32, ptr %answer, i64 {register}\n"
                    f"  %r{name} = load i32, ptr %a{name}\n"
                    f"  %m{name} = and i32 %r{name}, {_signed(mask)}\n"
                    f"  %has{name} = icmp eq i32 %m{name}, {_signed(mask)}\n"
                    f"  br i1 %has{name}, label %ok{name}, label %wrong\n"
                    f"ok{name}:\n"
                )
    saved = _SAVED["avx2" if system_of(target.triple) == "macos" else isa]
    tiles = any(name.startswith("amx_") for name in extensions)
    saved |= _TILES if tiles else 0
    yield (
        "  %low = call x86_64_sysvcc i64 @states()\n"
        f"  %saved = and i64 %low, {saved}\n"
        f"  %all = icmp eq i64 %saved, {saved}\n"
    )
    if tiles:
        yield (
            "  br i1 %all, label %request, label %wrong\n"
            "request:\n"
            "  %refused = call x86_64_sysvcc i64 @request_tiles()\n"
            "  %granted = icmp eq i64 %refused, 0\n"
            "  br i1 %granted, label %right, label %wrong\n"
        )
    else:
        yield "  br i1 %all, label %right, label %wrong\n"


def coded(head: str, code: bytes) -> str:
    """Return a function of machine code, which returns or ends by itself.

    Args:
        head: its type and its name.
        code: all of it.
    """
    text = "".join(f"\\{byte:02X}" for byte in code)
    data = f'prologue [{len(code)} x i8] c"{text}"'
    return f"define internal {head} nounwind naked noinline {data} {{\n  unreachable\n}}\n"


# Linux lets a process use tiles that asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
_REQUEST_TILES = bytes.fromhex(
    "b89e000000"  # mov eax, 158
    "bf23100000"  # mov edi, 0x1023
    "be12000000"  # mov esi, 18
    "0f05"  # syscall
    "c3"  # ret
)
_ASK = "x86_64_sysvcc void @ask"
_LISTING = ("linux", "android")
# Of the word AT_HWCAP: ASIMDDP; FPHP and ASIMDHP.
_LINUX_BITS = {"dotprod": 1 << 20, "fp16": 3 << 9}
# int64_t system(int64_t number, int64_t a, int64_t b, int64_t c, int64_t d)
_SYSTEM = bytes.fromhex(
    "e80300aa"  # mov x8, x0
    "e00301aa"  # mov x0, x1
    "e10302aa"  # mov x1, x2
    "e20303aa"  # mov x2, x3
    "e30304aa"  # mov x3, x4
    "010000d4"  # svc 0
    "c0035fd6"  # ret
)
_LINUX_CHECK = """\
  %has = call i64 @listed()
  %found = and i64 %has, {bits}
  %all = icmp eq i64 %found, {bits}
  br i1 %all, label %right, label %wrong
"""
# The word AT_HWCAP (16), of pairs that end with a zero; all bits where the file cannot be read. The
# system's calls are openat (56), read (63) and close (57); -100 is the folder that does not matter.
_LISTED = """
@file = private constant [16 x i8] c"/proc/self/auxv\\00"
define internal i64 @listed() nounwind {
entry:
  %pairs = alloca [1040 x i8], align 16
  %name = ptrtoint ptr @file to i64
  %to = ptrtoint ptr %pairs to i64
  %opened = call i64 @system(i64 56, i64 -100, i64 %name, i64 0, i64 0)
  %missing = icmp slt i64 %opened, 0
  br i1 %missing, label %unknown, label %read
read:
  %bytes = call i64 @system(i64 63, i64 %opened, i64 %to, i64 1024, i64 0)
  %closed = call i64 @system(i64 57, i64 %opened, i64 0, i64 0, i64 0)
  br label %next
next:
  %at = phi i64 [0, %read], [%following, %other]
  %following = add i64 %at, 16
  %more = icmp sle i64 %following, %bytes
  br i1 %more, label %look, label %unknown
look:
  %pair = getelementptr i8, ptr %pairs, i64 %at
  %kind = load i64, ptr %pair
  %is = icmp eq i64 %kind, 16
  br i1 %is, label %take, label %other
other:
  br label %next
take:
  %value.at = getelementptr i64, ptr %pair, i64 1
  %value = load i64, ptr %value.at
  ret i64 %value
unknown:
  ret i64 -1
}
"""


def _signed(word: int) -> int:
    """Return 32 bits as LLVM writes them."""
    return word - (1 << 32) if word >> 31 else word
