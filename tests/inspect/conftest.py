"""A real browser, for the tests of pages: skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    reason = "Playwright's client is not installed"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    chromium = chromium or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on PATH or in $CHROMIUM")
    with sync_api.sync_playwright() as client:
        found = client.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=chromium,
            headless=True,
            args=FLAGS,
            viewport={"width": 1280, "height": 900},
        )
        yield found
        found.close()


@pytest.fixture
def tab(context: Any) -> Iterator[Any]:
    """A tab; nothing may go wrong in its console while the test runs."""
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: _is_own(request.url) or said.append(request.url))
    yield page
    page.close()
    assert said == []


def _is_own(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))
