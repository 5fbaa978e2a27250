"""Screenshots of the built site (`make docs` first), and what they show cut off.

    python tools/screenshots.py OUT [PAGE …]        # default: every page of the site, without .html

Serves site/ on 127.0.0.1 and steers a headless Chromium (on PATH, or $CHROMIUM) by its DevTools
pipe: pages on a wide screen, on a laptop and on a phone, there in dark colours too. Ends with 1 if
a page scrolls sideways, if something in it is wider than its place and cannot be scrolled, or if
the search finds nothing in a site that is opened from the disk.
"""

from __future__ import annotations

import base64
import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[1] / "site"
# Name, width, colour scheme.
SCREENS = [
    ("wide", 1440, "light"),
    ("laptop", 1280, "light"),
    ("phone", 390, "light"),
    ("phone-dark", 390, "dark"),
]
MOST = 6000  # pixels of a page from its top: longer pictures are of no use to a reader
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
# What reaches beyond the screen, its own box or its cell, where nothing lets the reader scroll.
CUT = """
[...document.querySelectorAll('.md-content *')].filter(e => {
  if (!e.checkVisibility() || e.closest('svg')) return false;
  const hides = getComputedStyle(e).overflowX === 'hidden' || /^T[DH]$/.test(e.tagName);
  if (hides && e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1) return true;
  if (e.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false;
  for (let up = e; up; up = up.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(up).overflowX)) return false;
  return true;
}).map(e => e.tagName.toLowerCase() + '.' + e.className + ': ' + e.textContent.slice(0, 60))
  .concat(document.documentElement.scrollWidth > innerWidth ? ['the page'] : [])
"""
# Types into the search field and gives the first page that comes up within ten seconds.
SEARCH = """
(async () => {
  const field = document.querySelector('.md-search__input');
  field.focus();
  for (let tries = 0; tries < 100; tries++) {
    field.value = 'peephole';
    field.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true }));
    await new Promise(resolve => setTimeout(resolve, 100));
    const found = document.querySelector('.md-search-result__item');
    if (found) return found.textContent.trim().slice(0, 40);
  }
  return '';
})()
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None: ...


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, command: str, profile: str) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        self._process = subprocess.Popen(  # it reads from descriptor 3 and writes to descriptor 4
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
                "-",
                command,
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._rest, self._session = itertools.count(1), b"", {}
        target = self("Target.createTarget", url="about:blank")["targetId"]
        session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self("Page.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._from, 1 << 20)
                if not read:
                    raise RuntimeError("the browser has ended")
                self._rest += read
            message, _, self._rest = self._rest.partition(b"\0")
            found: dict[str, Any] = json.loads(message)
            if wanted(found):
                return found

    def open(self, address: str, width: int, scheme: str) -> None:
        """Load a page on a screen."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self("Page.navigate", url=address)
        self._until(lambda found: found.get("method") == "Page.loadEventFired")

    def value(self, script: str) -> Any:
        """What a piece of JavaScript gives, once its promise has come true."""
        answer = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def picture(self, width: int) -> bytes:
        """The page from its top, as a PNG."""
        height = min(self.value("document.documentElement.scrollHeight"), MOST)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        self._session = {}
        self("Browser.close")
        self._process.wait(20)


def main() -> int:
    """One picture per page and screen; what is cut off is printed."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    pages = sys.argv[2:] or sorted(
        path.relative_to(SITE).with_suffix("").as_posix() for path in SITE.rglob("*.html")
    )
    command = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if command is None or not SITE.is_dir():
        sys.exit("needs Chromium on PATH (or $CHROMIUM), and site/ from `make docs`")
    handler = functools.partial(Quiet, directory=SITE)
    cut, found = 0, ""
    with (
        tempfile.TemporaryDirectory() as profile,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser(command, profile)
        for page, (name, width, scheme) in itertools.product(pages, SCREENS):
            browser.open(f"http://127.0.0.1:{server.server_port}/{page}.html", width, scheme)
            picture = out / f"{page.replace('/', '-')}-{name}.png"
            picture.write_bytes(browser.picture(width))
            wide = browser.value(CUT)
            print(picture, *(f"\n  cut off: {each}" for each in wide))
            cut += len(wide)
        browser.open((SITE / "index.html").as_uri(), 1280, "light")
        found = browser.value(SEARCH)
        print(f"search from the disk: {found!r}")
        browser.close()
        server.shutdown()
    return cut > 0 or not found


if __name__ == "__main__":
    sys.exit(main())
