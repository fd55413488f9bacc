"""What every posterior promises: moments of any functional, and nothing without them."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import DirectionalDerivative, Evaluation, FeatureMap, OrbitAverage
from orbitwise.inference import Moments, Posterior
from orbitwise.inference.exact import ExactPosterior, condition
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations

FUNCTIONALS = [
    Evaluation(),
    OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
    DirectionalDerivative(torch.tensor([1.0, -0.5])),
    FeatureMap(lambda x: x.square()),
    2.0 * Evaluation() - OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
]


def test_a_posterior_without_moments_cannot_be_made():
    class Nothing(Posterior):
        pass

    with pytest.raises(TypeError, match="moments"):
        Nothing()


@pytest.mark.parametrize("functional", FUNCTIONALS, ids=lambda each: type(each).__name__)
def test_moments_of_any_functional_belong_together(functional):
    x = torch.randn(8, 2, dtype=torch.float64)
    targets = torch.stack([x.sum(-1).sin(), x.prod(-1)], dim=-1)
    process = Process(None, ScaleKernel(RBFKernel())).double()
    rows = Evaluation().atoms(x)
    posterior = condition(process, rows, targets, torch.full((8,), 0.1, dtype=torch.float64))
    assert isinstance(posterior, ExactPosterior)
    new = torch.randn(5, 2, dtype=torch.float64)
    moments = posterior.moments(functional, new)
    assert isinstance(moments, Moments)
    assert (moments.mean.shape, moments.variance.shape) == ((5, 2), (5,))
    torch.testing.assert_close(moments.mean_square, moments.mean**2 + moments.variance[:, None])
    # Data only ever take variance away.
    prior = process.variance(functional.atoms(new))
    assert bool((moments.variance > 0).all())
    assert bool((moments.variance < prior).all())
