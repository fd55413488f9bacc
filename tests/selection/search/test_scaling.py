"""What was learned for scaled inputs, said for the inputs as they were: the same covariances."""

import numpy as np
import pytest
import torch

from orbitwise.kernels.spelling import build, parse_expression, terms
from orbitwise.process import Process
from orbitwise.selection.search.auto import Scaling
from orbitwise.selection.search.hypotheses import Claim, Hypothesis, functional_of_claims, in_process_columns

X = 1960 + 20 * np.random.default_rng(0).uniform(size=(8, 2))


def gram(hypothesis: Hypothesis, x: np.ndarray) -> torch.Tensor:
    moved, width = in_process_columns(hypothesis.expression, hypothesis.claims, 2)
    functional = functional_of_claims(hypothesis.claims, 2).double()
    with torch.no_grad():
        return Process(None, build(moved, width)).covariance(functional.atoms(torch.from_numpy(x)))


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (
            "2*rbf(lengthscale=0.5)*periodic[0](lengthscale=0.7, period=0.3) + rq[1](lengthscale=2, alpha=3)",
            (),
        ),
        ("linear(variance=0.3, centre=(0.1, -0.4)) + 3*matern32(lengthscale=0.2)", ()),
        ("sm(1, mixture_scales=(0.2, 0.3), mixture_means=(0.5, 1), mixture_weights=2)", ()),
        ("rbf[0](lengthscale=0.5)", (Claim("mirror", (0,), 0.3), Claim("swap", (0, 1)))),
        ("rbf(lengthscale=0.5)", (Claim("period", (1,), 0.9), Claim("odd", (0,), -0.2))),
    ],
)
def test_covariances_are_the_same(text: str, claims: tuple[Claim, ...]):
    scaling = Scaling.of(X, ["rbf"])
    hypothesis = Hypothesis(parse_expression(text, 2), claims)
    scaled = gram(hypothesis, scaling.apply(X))
    torch.testing.assert_close(gram(scaling.undo(hypothesis), X), scaled, rtol=1e-7, atol=1e-7)


def test_scaled_inputs_and_given_claims():
    scaling = Scaling.of(X, ["rbf"])
    u = scaling.apply(X)
    assert u.mean() == pytest.approx(0.0, abs=1e-9)
    assert (u - u.mean(0)).std() == pytest.approx(1.0)
    claim = Claim("mirror", (0,), 1970.0, True)
    assert scaling.undo(Hypothesis(parse_expression("rbf"), (scaling.scaled_claim(claim),))).claims[
        0
    ].value == (pytest.approx(1970.0))
    assert scaling.scaled_claim(Claim("swap", (0, 1))) == Claim("swap", (0, 1))


def test_the_inverse_goes_back():
    scaling = Scaling(3.0, 2.0)
    made = Hypothesis(parse_expression("rbf(lengthscale=2)*linear(centre=1)"))
    found = scaling.inverse.undo(scaling.undo(made))
    values = [dict(term.values) for term in terms(found.expression)]
    assert values[0]["lengthscale"][0] == pytest.approx(2.0)
    assert values[1]["centre"][0] == pytest.approx(1.0)
    assert str(found) == str(made)


def test_kernels_with_an_origin_and_constant_inputs_are_left_alone():
    assert Scaling.of(X, ["rbf", "polynomial"]) == Scaling(0.0, 1.0)
    assert Scaling.of(np.full((5, 1), 3.0), ["rbf"]).scale == 1.0
