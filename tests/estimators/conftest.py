"""Data that the tests of estimators share."""

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def data(rng) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-2, 2, size=(25, 2))
    return x, np.sin(x[:, 0]) * x[:, 1] + 0.1 * rng.normal(size=25)


@pytest.fixture
def new(rng) -> np.ndarray:
    return rng.uniform(-2, 2, size=(7, 2))
