"""The documents as a site: `make docs` writes it to build/site.

    python docs/site/build.py [--check]

The pages are the files of this repository, under the same paths, so that every link between them
holds. Made besides: the reference of the package from its docstrings, and a gallery of all pictures
of results. `--check` opens every page in headless Chromium, where there is one, and fails if a page
shows no heading, or a picture did not load.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGED, SITE = ROOT / "build" / "site_pages", ROOT / "build" / "site"
CARRIED = {".md", ".svg", ".png"}
# Files that are no pages but that pages link to.
LINKED = {".py", ".json", ".toml", ".txt", ""}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def tracked() -> list[Path]:
    """The files of the repository, relative to it."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    folders = ("docs", "benchmarks", "examples", "src")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT) for path in [*ROOT.glob("*"), *files] if path.is_file()]


def links_of(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to, relative to it."""
    for target, _ in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        if "://" not in target:
            found = (ROOT / page).parent.joinpath(target).resolve()
            if found.is_file() and found.is_relative_to(ROOT):
                yield found.relative_to(ROOT)


def stage(files: Iterable[Path]) -> list[Path]:
    """Copy pages, pictures and what pages link to; returns the pages."""
    shutil.rmtree(STAGED, ignore_errors=True)
    pages = [file for file in files if file.suffix == ".md" and file.parts[0] != "tests"]
    wanted = {file for page in pages for file in (page, *links_of(page))}
    wanted |= {file for file in files if file.suffix in (".svg", ".png")}
    for file in wanted:
        to = STAGED / file
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            to.write_text(as_page((ROOT / file).read_text(encoding="utf-8"), file), "utf-8")
        else:
            shutil.copyfile(ROOT / file, to)
    return pages


def as_page(text: str, page: Path) -> str:
    """A page's text; links to folders become links to what is read first there."""

    def mended(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if "://" not in target and (ROOT / page).parent.joinpath(target).is_dir():
            target = f"{target.rstrip('/')}/README.md"
        return f"]({target}{anchor})"

    return _LINK.sub(mended, text)


def reference() -> str:
    """The page of the package: every public name with its docstring."""
    sys.path.insert(0, str(ROOT / "src"))
    import leanconv

    lines = ["# Reference", "", "Everything that `import leanconv as lc` gives.", ""]
    calls = [name for name in leanconv.__all__ if name[0].islower()]
    records = [n for n in leanconv.__all__ if n[0].isupper() and not n.endswith("Error")]
    errors = [name for name in leanconv.__all__ if name.endswith("Error")]
    for title, names in (("Functions", calls), ("Plans and networks", records), ("Errors", errors)):
        lines += [f"## {title}", ""]
        for name in names:
            kind = "autofunction" if name in calls else "autoclass"
            members = [":members:", ":inherited-members:"] if name in records else []
            lines += [
                "```{eval-rst}",
                f".. {kind}:: leanconv.{name}",
                *(f"   {m}" for m in members),
                "```",
                "",
            ]
    return "\n".join(lines)


# The pages by heading of the contents; the others are reached by links.
CONTENTS = {
    "Use": (
        "docs/tutorial",
        "docs/guide",
        "docs/command-line",
        "docs/from-pytorch",
        "docs/training",
        "docs/from-other-libraries",
        "docs/sparse",
        "docs/library",
        "docs/serving",
        "docs/large_images",
        "docs/dask",
        "docs/ray",
        "docs/scale",
        "docs/gpu",
        "reference",
    ),
    "Algorithms and results": (
        "docs/algorithms",
        "gallery",
        "docs/results/speed",
        "docs/results/README",
        "docs/results/gpu",
        "docs/results/library",
        "docs/results/conformance",
        "docs/performance",
        "docs/tuning",
        "benchmarks/README",
    ),
    "Inside": (
        "docs/architecture",
        "docs/operations",
        "docs/naming",
        "SECURITY",
        "CONTRIBUTING",
        "CHANGELOG",
    ),
}


def contents() -> str:
    """The first page: the README, and the contents of all others."""
    lines = ["```{include} README.md", "```", ""]
    named = {page for pages in CONTENTS.values() for page in pages}
    rest = sorted(
        str(path.relative_to(STAGED).with_suffix(""))
        for path in STAGED.rglob("*.md")
        if str(path.relative_to(STAGED).with_suffix("")) not in named | {"README", "index"}
    )
    rest = [f"{title_of(name)} <{name}>" for name in rest]
    for title, pages in (*CONTENTS.items(), ("More", rest)):
        lines += ["```{toctree}", ":hidden:", f":caption: {title}", ":maxdepth: 1", "", *pages]
        lines += ["```", ""]
    return "\n".join(lines)


def title_of(name: str) -> str:
    """A page's heading; of a result with the machine, since machines have the same pages."""
    text = (STAGED / f"{name}.md").read_text(encoding="utf-8")
    heading = next(line for line in text.splitlines() if line.startswith("# "))[2:]
    machine = re.match(r"docs/results/([^/]+)/", name)
    return f"{heading} ({machine[1]})" if machine else heading


def gallery(files: Iterable[Path]) -> str:
    """The page of all pictures of results, each a link to its page."""
    lines = ["# Gallery", "", "The documents' figures, re-made; a picture leads to its page.", ""]
    found = [file for file in files if file.suffix == ".svg" and "figures" in file.parts]
    for folder in sorted({file.parent for file in found}):
        lines += [f"## {folder.parent.name}", ""]
        for file in sorted(file for file in found if file.parent == folder):
            pages = [page for page in folder_pages(folder) if file.stem.startswith(page.stem)]
            page = max(pages, key=lambda page: len(page.stem)) if pages else folder / "README.md"
            lines += [f"[![{escape(file.stem)}]({file})]({page})", ""]
    if not found:
        lines += ["No figure is measured yet: `python benchmarks/figures.py all`.", ""]
    lines += ["## How the algorithms lie in memory", ""]
    for file in sorted(f for f in files if f.suffix == ".svg" and "pictures" in f.parts):
        lines += [f"[![{escape(file.stem)}]({file})](docs/algorithms.md)", ""]
    return "\n".join(lines)


def folder_pages(folder: Path) -> list[Path]:
    """The pages of a folder of figures."""
    return [path.relative_to(ROOT) for path in (ROOT / folder).glob("*.md")]


def build() -> list[Path]:
    """Write the site; returns its pages of HTML."""
    files = tracked()
    stage(files)
    (STAGED / "reference.md").write_text(reference(), encoding="utf-8")
    (STAGED / "gallery.md").write_text(gallery(files), encoding="utf-8")
    (STAGED / "index.md").write_text(contents(), encoding="utf-8")
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    settings = ["-c", str(ROOT / "docs" / "site")]
    subprocess.run([*command, *settings, str(STAGED), str(SITE)], check=True)
    return sorted(SITE.rglob("*.html"))


def browser() -> str | None:
    """A Chromium of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def faults(page: Path, program: str) -> list[str]:
    """What is wrong with a page as a browser shows it."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    shown = subprocess.run(
        [program, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found = [] if shown.returncode == 0 else [f"the browser failed: {shown.stderr[-200:]}"]
    if "<h1" not in shown.stdout:
        found.append("no heading is shown")
    for source in re.findall(r'<img[^>]* src="([^"]+)"', shown.stdout):
        target = page.parent / source
        if "://" not in source and not source.startswith("data:") and not target.is_file():
            found.append(f"the picture {source} is not there")
    return found


def main() -> int:
    """Build, and check if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="open every page in Chromium")
    options = parser.parse_args()
    pages = build()
    print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}")
    if not options.check:
        return 0
    program = browser()
    if program is None:
        print("no Chromium was found: nothing was opened")
        return 0
    wrong = 0
    for page in pages:
        for fault in (
            faults(page, program) if page.stem not in ("genindex", "search", "py-modindex") else ()
        ):
            print(f"{page.relative_to(SITE)}: {fault}")
            wrong += 1
    print(f"{len(pages)} pages were opened, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
