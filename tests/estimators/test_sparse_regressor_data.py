"""Real sets in both precisions: nothing fails to factorise, and few inducing variables already predict."""

import numpy as np
import pytest

from orbitwise import SparseGPRegressor, datasets

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETS = ["boston", "concrete", "energy", "kin8nm", "power", "protein", "wine_red", "yacht"]


@pytest.mark.requires_data(*(f"uci_reg_{name}" for name in SETS))
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, np.float32) for name in SETS), ("boston", np.float64), ("protein", np.float64)],
)
def test_given_sets_are_learned_in_both_precisions(name, dtype):
    data = datasets.load(f"uci_reg_{name}")
    test = np.zeros(len(data.x), dtype=bool)
    test[data.test_idx[0]] = True
    x, y = data.x[~test][:500].astype(dtype), data.y[~test][:500].astype(dtype)
    model = SparseGPRegressor(num_inducing=30, max_iterations=8, random_state=0).fit(x, y)
    new, wanted = data.x[test][:400].astype(dtype), data.y[test][:400]
    mean, std = model.predict(new, return_std=True, include_noise=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.mean((mean - wanted) ** 2) < wanted.var()
    assert model.certificate_.lower <= model.certificate_.upper
    # better than noise alone, also where equal rows with equal targets make exact evidence prefer no noise
    assert model.log_evidence_ > -0.5 * len(y) * (1 + np.log(2 * np.pi * y.astype(float).var()))
