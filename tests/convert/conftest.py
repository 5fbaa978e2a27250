"""The numbers of a run."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Drawn from the run's seed, which is printed at the top."""
    return np.random.default_rng(int(request.config.option.hypothesis_seed))
