"""The numbers of a run, and a folder for its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Drawn from the run's seed, which is printed at the top."""
    return np.random.default_rng(int(request.config.option.hypothesis_seed))


@pytest.fixture
def in_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files are written to a folder of the test's own, and no line of text is wrapped."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
