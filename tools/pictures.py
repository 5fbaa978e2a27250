"""Trains the default model and puts its pictures into docs/images, for README.md and docs/graph.md.

python tools/pictures.py          # about a minute
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        subprocess.run([sys.executable, "-m", "zstate", "train", "--run", str(run)], check=True)
        for name in ("loss.png", "gates.png", "gradient_flow.png"):
            shutil.copy(run / name, IMAGES / name)
        graph = ["graph", str(run), "--svg", str(IMAGES / "graph_training.svg")]
        subprocess.run([sys.executable, "-m", "zstate", *graph], check=True)  # with zstate[draw]


if __name__ == "__main__":
    main()
