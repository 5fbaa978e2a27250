"""The Markdown pages hold together, checked without the site's tools: links and anchors lead
somewhere, pictures have alternative texts, and the site's navigation names every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        page
        for folder in (".", "docs", "examples", "benchmarks")
        for page in sorted(ROOT.glob(f"{folder}/*.md"))
    ),
]


def prose(page: Path) -> str:
    """The page without its code blocks, which may contain brackets and #."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> Iterator[tuple[str, str]]:
    """(file, anchor) of every link and picture inside the repository; either may be empty."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        # The README has whole addresses, because a package index shows it too.
        target = re.sub(r"^https://[^/]+/zstate/zstate/(blob/)?main/", "", target)
        if not re.match(r"\w+:", target):
            name, _, anchor = target.partition("#")
            yield name, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ +(.*?) *$", prose(page), re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for name, anchor in links(prose(page)):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_the_names_of_pages_not_of_files(page: Path) -> None:
    assert re.findall(r"\[[^\]]*\.md\]\(", prose(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pictures_have_alternative_texts(page: Path) -> None:
    for text in re.findall(r"!\[([^\]]*)\]\(", prose(page)):
        assert len(text.split()) >= 5, f"{text!r} does not say what the picture shows"
    assert "<img" not in prose(page)


def test_the_pages_have_links_anchors_and_pictures() -> None:
    found = [link for page in PAGES for link in links(prose(page))]
    assert sum(bool(anchor) for _, anchor in found) > 10
    assert sum(name.endswith(".png") for name, _ in found) >= 6
    assert {"compile-export-func-autocast-checkpoints", "what-torchnn-does-not-have"} <= anchors(
        ROOT / "docs" / "torch.md"
    )


def test_the_site_lists_every_page_and_module() -> None:
    listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.name in listed
    for name in listed:
        if name.startswith("api/"):
            module = ROOT / "src" / "zstate" / Path(name).stem
            assert module.is_dir() or module.with_suffix(".py").exists(), name
        else:
            assert (ROOT / "docs" / name).exists() or (ROOT / name).exists(), name


def test_contributing_lists_files_that_exist_each_once() -> None:
    """In the table of places: a row's first column has a path, the second names below it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Where things are\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \| (.*) \|$", table, re.MULTILINE)
    listed = []
    for place, what in rows:
        path = ROOT / place
        folder = path if path.is_dir() else path.parent
        names = re.findall(r"`([\w/]+(?:\.(?:py|h|tsv)|/))`", what)
        listed += [path, *(folder / name for name in names)]
    assert [path for path in listed if not path.exists()] == []
    assert len(listed) == len(set(listed)) > 60
