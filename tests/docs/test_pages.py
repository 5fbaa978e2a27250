"""The documentation is true: every Python block of README and docs runs, every docstring's
example gives what it says, and every shell line of the README names a command that exists."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import zstate

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(zstate.__path__, "zstate.")
    if not name.endswith("__main__") and not name.endswith("_native")
]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The code blocks of a page with the line at which each begins."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    namespace: dict[str, object] = {}
    for line, code in blocks(page, "python"):
        # Blank lines in front, so that a failure shows the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_the_pages_have_examples() -> None:
    without = [page.name for page in PAGES if not blocks(page, "python")]
    assert set(without) <= {"performance.md", "numerics.md"}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for _, block in blocks(ROOT / "README.md", "sh"):
        for line in filter(None, (text.split("#")[0].strip() for text in block.splitlines())):
            command, *words = shlex.split(line)
            if command == "make":
                assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), line
            elif command == "zstate":
                assert importlib.util.find_spec(f"zstate.cli.{words[0]}"), line
            else:
                assert command in {"git", "cd", "pip"}, line


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            # The README is also the page of a package index, where only whole addresses work.
            is_whole = "://" in target
            assert is_whole or page.name != "README.md", target
            local = re.sub(r"^https://[^/]+/zstate/zstate/(blob/)?main/", "", target)
            if local != target:
                assert (ROOT / local).exists(), f"{page.name}: {target}"
            elif not is_whole:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
