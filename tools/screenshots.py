"""Screenshots of the built site (`make docs` first) at two widths, light and dark.

    python tools/screenshots.py OUT [PAGE …]        # default: every page of the site, without .html

Serves site/ on 127.0.0.1 and lets a headless Chromium (on PATH, or $CHROMIUM) take the pictures.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
WIDTHS = {"wide": 1280, "narrow": 500}  # a laptop; the narrowest window that Chromium opens
HEIGHT = 1600
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--virtual-time-budget=3000"),
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    """One picture per page, width and colour scheme."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    pages = sys.argv[2:] or [
        path.relative_to(SITE).with_suffix("").as_posix() for path in SITE.rglob("*.html")
    ]
    browser = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if browser is None or not SITE.is_dir():
        sys.exit("needs Chromium on PATH (or $CHROMIUM), and site/ from `make docs`")
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for page in pages:
            for name, width in WIDTHS.items():
                for scheme in ("light", "dark"):
                    picture = out / f"{page.replace('/', '-')}-{name}-{scheme}.png"
                    dark = ["--blink-settings=preferredColorScheme=0"] * (scheme == "dark")
                    with tempfile.TemporaryDirectory() as profile:
                        subprocess.run(
                            [
                                *(browser, *FLAGS, *dark, f"--user-data-dir={profile}"),
                                *(f"--window-size={width},{HEIGHT}", f"--screenshot={picture}"),
                                f"http://127.0.0.1:{server.server_port}/{page}.html",
                            ],
                            stderr=subprocess.DEVNULL,
                            timeout=60,
                            check=True,
                        )
                    print(picture)
        server.shutdown()


if __name__ == "__main__":
    main()
