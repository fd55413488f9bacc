"""A searched regressor comes back: predictions, components, history and words."""

import numpy as np
import pytest

import orbitwise
from orbitwise import AutoGPRegressor

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 4, (25, 1))


@pytest.mark.parametrize("invariance", ["mirror[0]", "period[0](period=2)"])
def test_round_trip(tmp_path, invariance: str):
    y = np.cos(np.pi * (X[:, 0] - 1)) + 0.05 * RANDOM.standard_normal(25)
    settings = {"max_depth": 0, "base_kernels": ["matern52"], "num_restarts": 1, "verbose": False}
    model = AutoGPRegressor(invariances=[invariance], random_state=0, **settings).fit(X, y)
    assert model.invariance_ is not None
    orbitwise.save(model, tmp_path / "model.orbitwise")
    back = orbitwise.load(tmp_path / "model.orbitwise")
    assert isinstance(back, AutoGPRegressor)
    assert np.array_equal(back.predict(X), model.predict(X))
    assert back.summary() == model.summary()
    assert back.history_ == model.history_
    for one, other in zip(back.components(X), model.components(X), strict=True):
        assert one.spelling == other.spelling
        assert np.array_equal(one.mean, other.mean)
        assert np.array_equal(one.std, other.std)
    assert back.get_params() == model.get_params()
