"""The documentation is true: every Python block of README and docs runs, every docstring's
example gives the result it shows, and every shell line of the README names an existing command."""

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
# The pages that show what their blocks print, and how often at least.
SHOWN = {"README.md": 2, "cells.md": 10, "equations.md": 1, "onnx.md": 3, "tutorial.md": 5}
RUN = [page for page in PAGES if page.name not in SHOWN]
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
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
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
    """A package index shows it too, where relative links break; test_links.py follows them."""
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert "://" in target, target


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name in SHOWN], ids=lambda page: page.name
)
def test_a_page_prints_what_it_shows(page: Path) -> None:
    """The text right below a block of Python is what it prints: the words exactly, the numbers up
    to what other machines round differently."""
    namespace: dict[str, object] = {}
    shown = 0
    for code, output in re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        (words, numbers), (wanted, values) = split(printed.getvalue()), split(output)
        assert words == wanted
        assert numbers == pytest.approx(values, rel=0.05, abs=0.01)
        shown += bool(output)
    assert shown >= SHOWN[page.name]


def split(text: str) -> tuple[list[str], list[float]]:
    """The text around its decimal numbers, and those numbers."""
    parts = re.split(r"(\b\d+\.\d+)", text)
    return parts[::2], [float(part) for part in parts[1::2]]
