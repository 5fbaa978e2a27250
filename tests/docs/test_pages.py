"""The documentation is true: every Python block of README and docs runs, every docstring's
example gives what it says, and every shell line of the README names a command that exists."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import zstate

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [page for page in PAGES if page.name != "tutorial.md"]  # which a test of its own runs
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(zstate.__path__, "zstate.")
    if name.rpartition(".")[2] not in ("__main__", "_native", "libzstate_xla")
]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The code blocks of a page with the line at which each begins."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in found]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
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


def test_the_readme_links_by_whole_addresses() -> None:
    """It is also the page of a package index, where no others work; test_links.py follows them."""
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert "://" in target, target


def test_the_tutorial_prints_what_it_shows() -> None:
    namespace: dict[str, object] = {}
    shown = 0
    for code, output in re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?",
        (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue() == output
        shown += bool(output)
    assert shown >= 5
