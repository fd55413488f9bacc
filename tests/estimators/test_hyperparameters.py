"""Lengthscales, variances and noise by name, in the units of the data."""

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.kernels.kernel import Kernel

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, MoleculeGP, SparseGPRegressor
from orbitwise.estimators.hyperparameters import hyperparameters_of, kernel_text
from orbitwise.kernels import ScaledColumnsKernel, parse
from orbitwise.likelihoods import Poisson

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 10, (20, 2))
Y = 100 * np.sin(X[:, 0]) + 1000 + 5 * RANDOM.standard_normal(20)


def listed(kernel: str | Kernel, scale: tuple[float, ...] = (10.0,)) -> dict[str, tuple[list[float], str]]:
    """Values and unit by name, of a kernel of two columns."""
    given = parse(kernel, 2) if isinstance(kernel, str) else kernel
    found = hyperparameters_of(given, ["age", "height"], "y", torch.tensor(scale))
    assert len({each.name for each in found}) == len(found)
    return {each.name: (pytest.approx(list(each.values), rel=1e-5), each.unit) for each in found}


def test_the_variance_of_f_is_in_units_of_the_targets():
    assert listed("2*rbf(lengthscale=(3, 4))") == {
        "variance": ([200.0], "y²"),
        "lengthscale, age": ([3.0], "age"),
        "lengthscale, height": ([4.0], "height"),
    }
    assert listed("2*rbf(lengthscale=3)", (10.0, 1.0)) == {
        "variance": ([200.0, 2.0], "y²"),
        "lengthscale": ([3.0], "x"),
    }
    # a kernel without an amplitude has that of standardised targets
    assert listed(RBFKernel())["variance"] == ([100.0], "y²")


def test_kernels_of_a_sum_are_told_apart_by_their_columns():
    assert listed("2*rbf[0] + 3*rbf[1]*periodic[0](lengthscale=5, period=7) + rbf[0]") == {
        "variance of rbf[age]": ([200.0], "y²"),
        "lengthscale of rbf[age]": ([1.0], "age"),
        "variance of rbf[height]*periodic[age]": ([300.0], "y²"),
        "lengthscale of rbf[height]": ([1.0], "height"),
        "lengthscale of periodic[age]": ([5.0], ""),
        "period of periodic[age]": ([7.0], "age"),
        "variance of rbf[age] (2)": ([100.0], "y²"),
        "lengthscale of rbf[age] (2)": ([1.0], "age"),
    }


def test_only_one_factor_of_a_product_is_in_units_of_the_targets():
    assert listed("linear[0](variance=2)*linear[1](variance=5)") == {
        "variance of the slope of linear[age]": ([200.0], "y²/age²"),
        "centre of linear[age]": ([0.0], "age"),
        "variance of the slope of linear[height]": ([5.0], "1/height²"),
        "centre of linear[height]": ([0.0], "height"),
    }
    found = listed(ScaleKernel(ScaleKernel(RBFKernel())))
    assert found["variance"][1] == "y²"
    assert found["factor"][1] == ""


def test_other_kernels_have_units_of_their_own():
    found = listed("sm[0](2) + polynomial(2, offset=3) + 4*constant + rq(alpha=6)")
    assert found["frequency of sm[age]"][1] == "1/age"
    assert found["variance of sm[age]"][1] == "y²"
    assert found["variance of polynomial"][1] == "y²/x⁴"
    assert found["offset of polynomial"] == ([3.0], "x²")
    assert found["variance of constant"] == ([400.0], "y²")
    assert found["alpha of rq"] == ([6.0], "")


def test_columns_in_units_of_their_own_are_given_in_those_of_the_data():
    base = RBFKernel()
    base.lengthscale = 2.0
    kernel = ScaleKernel(ScaledColumnsKernel(base, torch.tensor([1.0, 10.0])))
    found = listed(kernel)
    assert found["lengthscale, age"] == ([2.0], "age")
    assert found["lengthscale, height"] == ([20.0], "height")
    assert kernel_text(kernel) == "rbf"
    assert kernel_text(parse("rbf[0]*periodic", 2)) == "rbf[0]*periodic"


def test_variances_of_parts_add_up_to_that_of_f():
    kernel = parse("2*rbf*periodic + 3*rq + 0.5*constant*matern52", 2)
    model = InvariantGPRegressor(kernel, max_iterations=0, noise=1.0).fit(X, Y)
    variances = [each.values[0] for each in model.hyperparameters_ if each.name.startswith("variance")]
    standardised = model.kernel_(torch.zeros(1, 2).double(), diag=True).item()
    assert sum(variances) == pytest.approx(standardised * np.var(Y), rel=1e-6)


@pytest.mark.parametrize("estimator", [InvariantGPRegressor, SparseGPRegressor])
def test_values_follow_the_units_of_the_data(estimator: type[InvariantGPRegressor | SparseGPRegressor]):
    frame = pd.DataFrame(X, columns=["age", "height"])
    first, second = (
        estimator(max_iterations=0, random_state=0).fit(frame * a, Y * b).hyperparameters_
        for a, b in ((1.0, 1.0), (5.0, 10.0))
    )
    assert [each.name for each in first] == [
        *("variance", "lengthscale, age", "lengthscale, height"),
        *("noise variance", "noise standard deviation"),
    ]
    factors = {"y²": 100.0, "y": 10.0, "age": 5.0, "height": 5.0}
    for one, other in zip(first, second, strict=True):
        assert other.values == pytest.approx([value * factors[one.unit] for value in one.values], rel=1e-6)


def test_noise_has_its_standard_deviation_beside_it():
    model = InvariantGPRegressor(max_iterations=0, noise=9.0).fit(X, Y)
    assert [(each.values, each.unit) for each in model.hyperparameters_[-2:]] == [
        ((pytest.approx(9.0),), "y²"),
        ((pytest.approx(3.0),), "y"),
    ]


def test_f_on_a_scale_of_its_own_is_not_in_units_of_the_targets():
    counts = np.round(np.abs(Y) / 100)
    of_counts = InvariantGPRegressor(likelihood=Poisson(), max_iterations=0).fit(X, counts)
    of_classes = InvariantGPClassifier(max_iterations=0).fit(X, Y > 1000)
    for model in (of_counts, of_classes):
        units = {each.name: each.unit for each in model.hyperparameters_}
        assert units["variance"] == "f²"
        assert units["lengthscale, x0"] == "x0"
    assert "noise variance" not in {each.name for each in of_counts.hyperparameters_}


def test_inputs_of_the_kernel_that_are_not_those_of_the_model_have_other_names():
    atoms = RANDOM.normal(size=(6, 3, 3))
    model = MoleculeGP(z=[8, 1, 1], max_iterations=0).fit(atoms, np.arange(6.0))
    units = {each.unit for each in model.hyperparameters_}
    assert not any("x" in unit for unit in units)
    assert any("z" in unit for unit in units)
