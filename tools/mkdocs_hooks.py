"""What mkdocs.yml cannot say: pages from outside docs/, pages made from a module, and docstrings in
this project's notation."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files of the repository that the site has as well, at the same place beside docs/.
OUTSIDE = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "examples/*"]
# Methods that modules of zstate call on each other's classes; users do not.
INTERNAL = {
    *("add_node", "add_node_named", "apply", "apply_many", "check_fit", "needed", "note_assign"),
    *("own", "training_twin", "run_checked", "saved_nodes", "updates"),
    *("direction_weights", "directions", "joined", "layer_directions", "layer_parameters"),
    *("bound_to", "check_feeds"),
}
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/ and a page for every api/NAME.md in nav."""
    for path in (path for pattern in OUTSIDE for path in ROOT.glob(pattern) if path.is_file()):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for title, name in _pages(config.nav):
        module = PurePosixPath(name)
        if module.parts[0] == "api":
            text = f"# {title}\n\n`zstate.{module.stem}`\n\n::: zstate.{module.stem}\n"
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links that hold in the repository into links that hold in the site."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    folder = Path(source).parent

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2])).relative_to(ROOT).as_posix()
        place = PurePosixPath(page.file.src_uri).parent
        return match[1] + os.path.relpath(target.removeprefix("docs/"), place)

    return LINK.sub(moved, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Let a picture open by itself: on a phone its words are too small to read."""
    return re.sub(r'<p>(<img [^>]*src="([^"]+)"[^>]*>)</p>', r'<p><a href="\2">\1</a></p>', content)


def on_post_build(config: MkDocsConfig) -> None:
    """Every link of the built site leads to a file, and its anchor to an element of that file."""
    site = Path(config.site_dir)
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    anchors = {page: set(re.findall(r' id="([^"]+)"', text)) for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        if page.parent.name == "api" and "<blockquote>" in text:
            raise PluginError(
                f"{page.relative_to(site)}: a docstring's >>> was read as a quotation"
            )
        if page.name == "404.html":  # its links begin at the root of whatever serves it
            continue
        for link in re.findall(r' (?:href|src)="([^"]+)"', text):
            path, _, anchor = html.unescape(link).partition("#")
            if re.match(r"\w+:", path):
                continue
            target = Path(os.path.normpath(page.parent / path)) if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and anchor not in anchors.get(target, ())):
                broken.append(f"{page.relative_to(site)}: {link}")
    if broken:
        raise PluginError("links that lead nowhere:\n  " + "\n  ".join(broken))


def _pages(nav: Any) -> list[tuple[str, str]]:
    """Every (title, page) of nav."""
    if isinstance(nav, list):
        return [page for entry in nav for page in _pages(entry)]
    ((title, value),) = nav.items()
    return [(title, value)] if isinstance(value, str) else _pages(value)


class Docstrings(griffe.Extension):
    """Shows what zstate or the module itself exports, and docstrings as the plain text they are:
    Markdown would read a link into a shape such as [T,N,H]."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for owner in (pkg["jax.functions"], pkg["graph.methods.recurrent.Recurrent"]):
            for function in owner.functions.values():
                _unpack(function, pkg)
        for module in pkg.modules.values():
            exported = {*(pkg.exports or ()), *(module.exports or ())}
            for name, member in module.members.items():
                if not member.is_alias:
                    member.public = name in exported

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        for name in [*cls.members]:  # removed: a member reached through an alias is public by name
            if name in INTERNAL or re.fullmatch("__(?!init__|call__).*__", name):
                cls.del_member(name)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text, example, code = obj.docstring.value.partition("Example:\n")
            # What a session prints goes to the end of its paragraph, as doctest reads it.
            parts = re.split(r"^(>>> .*?)(?=\n\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)
            parts[::2] = map(_escaped, parts[::2])
            parts[1::2] = [f"```pycon\n{session}\n```" for session in parts[1::2]]
            obj.docstring.value = "".join(parts) + example.replace("Example", "Examples") + code


def _unpack(function: griffe.Function, package: griffe.Module) -> None:
    """List the keywords of an operation, named by a type of zstate.keywords, one by one."""
    *_, last = (None, *function.parameters)
    kind = last and re.fullmatch(r"Unpack\[(\w+)\]", str(last.annotation))
    if not kind:
        return
    del function.parameters[last.name]
    array = str(function.parameters["source"].annotation)
    order = [each.name for each in package["functional"][function.name].parameters]
    members = package["keywords"][kind[1]].all_members
    for name in sorted(members, key=[*order, *members].index):
        annotation = re.sub(r"\bA\b", array, str(members[name].annotation))
        inner = annotation.removeprefix("Required[")
        default = None if inner != annotation else "1" if name == "heads" else "None"
        keyword = griffe.ParameterKind.keyword_only
        inner = inner.removesuffix("]") if default is None else inner
        function.parameters.add(
            griffe.Parameter(name, annotation=inner, kind=keyword, default=default)
        )


def _escaped(text: str) -> str:
    """Plain text as Markdown, with links to the pages that it names."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    spans = re.split(r"(`+[^`]*`+)", text)
    spans[::2] = [re.sub(r"([\[\]*])", r"\\\1", span).replace("<", "&lt;") for span in spans[::2]]
    return re.sub(
        r"docs/(\S+)\.md", lambda page: f"[{_title(page[1])}](../{page[1]}.html)", "".join(spans)
    )


def _title(page: str) -> str:
    """The heading of a page of docs/."""
    first, _, _ = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")
