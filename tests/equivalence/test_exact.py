"""Different ways to say the same exact model give the same posterior and evidence."""

import math

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    FiniteDifference,
    OrbitAverage,
)
from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior, condition, evidence
from orbitwise.orbits import FiniteOrbit, FrozenOrbit, SampledOrbit, closure
from orbitwise.process import FunctionalKernel, Process
from orbitwise.transforms import (
    LinearMaps,
    Rotation,
    SignedPermutations,
    coordinate_permutations,
    cyclic_shifts,
    flips,
    quarter_turns,
    turns,
)

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

COUNT, NOISE = 12, 0.1


@pytest.fixture
def process() -> Process:
    return Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)


def data(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, new = torch.randn(COUNT, width, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    return x, torch.stack([(2 * x[:, 0] + x[:, 1]).sin(), x[:, 0] * x[:, -1]], dim=-1), new


def noise(count: int, variance: float = NOISE) -> torch.Tensor:
    return torch.full((count,), variance, dtype=torch.float64)


def fit(process: Process, functional: Functional, x: torch.Tensor, y: torch.Tensor) -> ExactPosterior:
    return condition(process, functional.atoms(x), y, noise(len(x)))


def assert_same(process: Process, first: Functional, second: Functional, width: int) -> None:
    """Both functionals give the same evidence and the same posterior."""
    x, y, new = data(width)
    terms = [evidence(process, each.atoms(x), y, noise(COUNT)) for each in (first, second)]
    moments = [fit(process, each, x, y).moments(each, new) for each in (first, second)]
    assert terms[0].value.item() == pytest.approx(terms[1].value.item(), rel=1e-9)
    torch.testing.assert_close(moments[0].mean, moments[1].mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(moments[0].variance, moments[1].variance, atol=1e-9, rtol=0)
    plain = evidence(process, Evaluation().atoms(x), y, noise(COUNT)).value.item()
    assert abs(plain - terms[0].value.item()) > 0.01, "an average that does something"


def test_a_finite_orbit_is_the_frozen_orbit_of_all_its_elements(process):
    angles = torch.tensor([[0.0], [0.5], [1.0], [1.5]], dtype=torch.float64)
    # α = centre + spread·ε: bounds 0 and 2π place the nodes ε at π + πε.
    source = SampledOrbit(Rotation(), 0.0, 2 * math.pi, learnable=False).double()
    frozen = OrbitAverage(FrozenOrbit(source, angles - 1))
    assert_same(process, OrbitAverage(FiniteOrbit(turns(4))), frozen, width=2)
    listed = OrbitAverage(FiniteOrbit(Rotation(), elements=angles * math.pi))
    assert_same(process, listed, frozen, width=2)


def test_a_permutation_is_a_linear_map(process):
    order = torch.eye(3, dtype=torch.float64)
    shifts = cyclic_shifts(3)
    maps = LinearMaps(order[shifts.index], is_group=True)
    assert_same(process, OrbitAverage(FiniteOrbit(shifts)), OrbitAverage(FiniteOrbit(maps)), width=3)


def test_a_closure_is_the_group_listed(process):
    swap = SignedPermutations(torch.tensor([[0, 1, 2], [1, 0, 2]]))
    generated = OrbitAverage(closure(swap, cyclic_shifts(3)))
    assert generated.orbit.size == 6
    assert_same(process, generated, OrbitAverage(FiniteOrbit(coordinate_permutations(3))), width=3)


def test_averages_of_averages_are_averages_over_the_whole_group(process):
    flipped, turned = (OrbitAverage(FiniteOrbit(each((2, 2)))) for each in (flips, quarter_turns))
    whole = OrbitAverage(closure(flips((2, 2)), quarter_turns((2, 2))))
    assert_same(process, flipped @ turned, whole, width=4)


def test_one_side_of_a_double_sum_is_both(process):
    x, y, new = data(3)
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    both = Process(None, process.kernel, one_sided=False)
    for mine, other in zip(
        fit(process, functional, x, y).moments(functional, new),
        fit(both, functional, x, y).moments(functional, new),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("width", [2, 3])
def test_augmented_data_with_the_noise_of_the_group_give_the_invariant_posterior(process, width):
    """A plain GP that sees y at every h·x, with |G| times the noise, predicts what the invariant GP predicts.

    The mean of the |G| copies is then one observation of f with the noise of y; the rest sees only zeros of
    the part of g that f does not have. Its evidence is another: it counts every copy as a datum.
    """
    x, y, new = data(width)
    group = coordinate_permutations(width)
    functional, size = OrbitAverage(FiniteOrbit(group)), math.factorial(width)
    invariant = fit(process, functional, x, y)
    augmented = condition(
        process,
        Evaluation().atoms(group.all_elements(x).flatten(0, 1)),
        y.repeat_interleave(size, 0),
        noise(size * COUNT, size * NOISE),
    )
    expected = invariant.moments(functional, new)
    torch.testing.assert_close(augmented.moments(Evaluation(), new).mean, expected.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(augmented.moments(functional, new).mean, expected.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(
        augmented.moments(functional, new).variance, expected.variance, atol=1e-9, rtol=0
    )
    # With the noise of y itself, copies count as evidence that they are not.
    overconfident = condition(process, augmented.rows, augmented.targets, noise(size * COUNT))
    assert bool((overconfident.moments(functional, new).variance < expected.variance).all())


def test_sorting_the_inputs_is_a_feature_map():
    x, y, new = (each.numpy() for each in data(3))
    canonical = InvariantGPRegressor(ScaleKernel(RBFKernel()), max_iterations=5).fit(np.sort(x), y)
    features = FeatureMap(lambda points: points.sort(-1).values)
    mapped = InvariantGPRegressor(ScaleKernel(RBFKernel()), features, max_iterations=5).fit(x, y)
    assert mapped.log_evidence_ == pytest.approx(canonical.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(
        mapped.predict(new, return_std=True), canonical.predict(np.sort(new), return_std=True), atol=1e-9
    )
    average = InvariantGPRegressor(ScaleKernel(RBFKernel()), "permutation", max_iterations=5).fit(x, y)
    assert abs(average.log_evidence_ - canonical.log_evidence_) > 0.1, (
        "another prior, though invariant as well"
    )


def test_small_differences_are_slopes(process):
    x, y, new = data(2)
    posterior = fit(process, OrbitAverage(FiniteOrbit(coordinate_permutations(2))), x, y)
    direction = torch.tensor([0.6, 0.8])
    slope, difference = (
        posterior.moments(each, new)
        for each in (DirectionalDerivative(direction), FiniteDifference(direction, step=1e-4))
    )
    torch.testing.assert_close(slope.mean, difference.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(slope.variance, difference.variance, atol=1e-5, rtol=0)


class Model(gpytorch.models.ExactGP):
    """An ExactGP whose kernel is that of an invariant function."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, kernel: gpytorch.kernels.Kernel) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood().double())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel
        self.likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("base", [RBFKernel(), MaternKernel(nu=1.5, ard_num_dims=3)])
@pytest.mark.parametrize(
    "functional",
    [
        Evaluation(),
        OrbitAverage(FiniteOrbit(coordinate_permutations(3))),
        OrbitAverage(SampledOrbit(Rotation(3), -1.0, 1.0).freeze(5, torch.Generator().manual_seed(0))),
    ],
    ids=["values", "permutations", "frozen rotations"],
)
def test_gpytorch_with_our_kernel_is_our_engine(base, functional):
    x, y, new = data(3)
    y = y[:, 0]
    base = ScaleKernel(base).double()
    process = Process(None, base).requires_grad_(False)
    model = Model(x, y, FunctionalKernel(base, functional)).requires_grad_(False)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    theirs = likelihood(model(x), y).item() * COUNT
    ours = evidence(process, functional.atoms(x), y[:, None], noise(COUNT)).value.item()
    assert ours == pytest.approx(theirs, rel=1e-6)
    model.eval()
    with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
        predicted = model(new)
        mean, variance = predicted.mean, predicted.variance
    moments = fit(process, functional, x, y[:, None]).moments(functional, new)
    torch.testing.assert_close(moments.mean[:, 0], mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(moments.variance, variance, atol=1e-6, rtol=0)


def test_the_estimator_is_the_engine_in_other_units():
    x, y, new = data(2)
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    model = InvariantGPRegressor(invariance="permutation", max_iterations=5).fit(x.numpy(), y[:, 0].numpy())
    shift, scale = y[:, 0].mean(), y[:, 0].std(correction=0)
    process = Process(None, model.kernel_).requires_grad_(False)
    variance = model.noise_ / scale.item() ** 2
    posterior = condition(process, functional.atoms(x), (y[:, :1] - shift) / scale, noise(COUNT, variance))
    moments = posterior.moments(functional, new)
    mean, deviation = model.predict(new.numpy(), return_std=True, include_noise=False)
    np.testing.assert_allclose(mean, moments.mean[:, 0] * scale + shift, atol=1e-10)
    np.testing.assert_allclose(deviation**2, moments.variance * scale**2, atol=1e-10)
