"""Posteriors of components against their joint distribution, written out."""

import numpy as np
import pytest
import torch

from orbitwise.estimators import InvariantGPRegressor
from orbitwise.kernels import parse
from orbitwise.selection.search.auto import additive_parts, part_moments

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 5, (20, 1))
Y = np.sin(X[:, 0]) + X[:, 0] + 0.1 * RANDOM.standard_normal(20)
NEW = np.linspace(0, 6, 7)[:, None]
TEXT = "0.5*rbf(lengthscale=1) + 0.2*linear(centre=2)*(periodic(period=2) + 3*rq)"


def test_products_of_sums_are_multiplied_out():
    parts = additive_parts(parse(TEXT, 1))
    assert len(parts) == 3


def test_moments_are_those_of_the_joint_distribution():
    model = InvariantGPRegressor(parse(TEXT, 1), noise=0.05, max_iterations=0).fit(X, Y)
    standardised = (Y - Y.mean()) / Y.std()
    x, new = torch.from_numpy(X), torch.from_numpy(NEW)
    kernels = [
        parse("0.5*rbf(lengthscale=1)", 1),
        parse("0.2*linear(centre=2)*periodic(period=2)", 1),
        parse("0.6*linear(centre=2)*rq", 1),
    ]
    with torch.no_grad():
        noise = 0.05 / Y.var() * np.eye(20)
        total = sum(kernel(x).to_dense().numpy() for kernel in kernels) + noise
        inverse = np.linalg.inv(total)
        means = []
        parts = additive_parts(model.kernel_)
        moments = part_moments(parts, 1, model.posterior_, model.functional_, new)
        for (mean, std), kernel in zip(moments, kernels, strict=True):
            cross = kernel(new, x).to_dense().numpy()
            covariance = kernel(new).to_dense().numpy() - cross @ inverse @ cross.T
            np.testing.assert_allclose(mean, cross @ inverse @ standardised, atol=1e-8)
            np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), atol=1e-6)
            means.append(mean)
    np.testing.assert_allclose(sum(means) * Y.std() + Y.mean(), model.predict(NEW), atol=1e-8)


def test_sparse_posteriors_are_refused():
    model = InvariantGPRegressor(
        parse("rbf", 1), inference="collapsed", max_iterations=1, num_inducing=5
    ).fit(X, Y)
    parts = additive_parts(model.kernel_)
    with pytest.raises(ValueError, match="Components need exact inference"):
        part_moments(parts, 1, model.posterior_, model.functional_, torch.from_numpy(NEW))
