"""Hyperpriors: defaults are proper and weak, cut-off mass is counted, and what does not fit is refused."""

import math

import numpy as np
import pytest
import torch
from gpytorch.means import ConstantMean
from gpytorch.priors import (
    GammaPrior,
    LogNormalPrior,
    MultivariateNormalPrior,
    NormalPrior,
    UniformPrior,
)
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import StudentT

from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.points import Wrap
from orbitwise.inference.optimise.hyperparameters import JointHyperprior, parts_of
from orbitwise.inference.optimise.hyperpriors import (
    default_hyperprior,
    fitting_hyperprior,
    nearest_name,
    weak_hyperpriors,
)
from orbitwise.kernels import BASES, parse
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits.mirrors import MirrorOrbit


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


INFINITE = (number(-math.inf), number(math.inf))
POSITIVE = (number(0.0), number(math.inf))
NAMES = ["kernel.lengthscale", "kernel.outputscale", "noise", "mean.lengthscale"]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (3.0, 0.0, math.inf),
        (0.6, 0.5, math.inf),
        (-2.0, -math.inf, 1.0),
        (0.2, 0.0, 0.7),
        (-4.0, *[math.inf] * 2),
    ],
)
def test_default_hyperpriors_integrate_to_one_and_start_at_their_median(
    value: float, low: float, high: float
):
    low = -math.inf if low == math.inf else low
    prior = default_hyperprior(number(value), number(low), number(high))
    half = [
        quad(lambda theta: prior.log_prob(number(theta)).exp().item(), *ends, limit=400)[0]
        for ends in ((low, value), (value, high))
    ]
    assert sum(half) == pytest.approx(1.0, abs=1e-5)
    if math.isinf(high) or math.isinf(low):
        assert half[0] == pytest.approx(0.5, abs=1e-5)


def test_default_hyperprior_is_as_wide_as_told():
    prior = default_hyperprior(number(3.0), *POSITIVE, scale=0.5)
    assert prior.cdf(number(3 * math.exp(0.5))).item() == pytest.approx(norm.cdf(1.0))


def test_mass_beyond_the_range_of_the_parameter_is_made_up_for():
    _, mass = fitting_hyperprior("a", NormalPrior(0.5, 1.0), number(1.0), *POSITIVE)
    assert mass == pytest.approx(math.log(norm.cdf(0.5)), abs=1e-6)
    low = number(0.2)
    _, mass = fitting_hyperprior("a", GammaPrior(2.0, 3.0), number(1.0), low, POSITIVE[1])
    # 1 - cdf of a gamma of shape 2: e^{-3x}(1 + 3x)
    assert mass == pytest.approx(math.log(math.exp(-0.6) * 1.6), abs=1e-6)
    _, mass = fitting_hyperprior("a", LogNormalPrior(0.0, 1.0), number(1.0), *POSITIVE)
    assert mass == 0.0
    three = torch.ones(3, dtype=torch.float64)
    _, mass = fitting_hyperprior("a", NormalPrior(0.0, 1.0), three, 0 * three, three * math.inf)
    assert mass == pytest.approx(3 * math.log(0.5), abs=1e-6)


def test_a_joint_prior_serves_a_free_parameter():
    two = torch.zeros(2, dtype=torch.float64)
    prior, mass = fitting_hyperprior(
        "a", MultivariateNormalPrior(torch.zeros(2), torch.eye(2)), two, two - math.inf, two + math.inf
    )
    assert mass == 0.0
    assert prior.log_prob(two).item() == pytest.approx(-math.log(2 * math.pi), abs=1e-6)


@pytest.mark.parametrize(
    ("prior", "size", "ends", "message"),
    [
        (UniformPrior(0.0, 1.0), 1, POSITIVE, "no density outside 0 to 1.*ranges from 0 to inf"),
        (GammaPrior(1.0, 1.0), 1, INFINITE, "no density outside 0 to inf"),
        (NormalPrior(torch.zeros(3), torch.ones(3)), 2, INFINITE, r"shape \(3,\).*shape \(2,\)"),
        (NormalPrior(torch.zeros(3), torch.ones(3)), 1, INFINITE, r"shape \(3,\).*shape \(1,\)"),
        (GammaPrior(1.0, 1.0, transform=torch.exp), 1, POSITIVE, "its own transform"),
        (3.0, 1, POSITIVE, "must be a gpytorch Prior"),
        (MultivariateNormalPrior(torch.zeros(2), torch.eye(2)), 2, POSITIVE, "cannot be truncated"),
        (StudentT(3.0), 1, POSITIVE, "its mass there is unknown"),
        (NormalPrior(-1e3, 1e-3), 1, POSITIVE, "has no mass"),
    ],
)
def test_what_does_not_fit_is_refused(prior: object, size: int, ends: tuple, message: str):
    low, high = (end.expand(size) for end in ends)
    with pytest.raises(ValueError, match=message):
        fitting_hyperprior("kernel.a", prior, torch.ones(size, dtype=torch.float64), low, high)


def test_the_end_of_a_name_is_enough():
    assert nearest_name("noise", NAMES) == "noise"
    assert nearest_name("outputscale", NAMES) == "kernel.outputscale"
    assert nearest_name("mean.lengthscale", NAMES) == "mean.lengthscale"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lengthscale", "may mean kernel.lengthscale or mean.lengthscale"),
        ("outputscal", "Did you mean kernel.outputscale"),
        ("xyz", "no hyperparameter 'xyz'. There are kernel.lengthscale"),
    ],
)
def test_unknown_names_get_suggestions(name: str, message: str):
    with pytest.raises(ValueError, match=message):
        nearest_name(name, NAMES)


X = np.random.default_rng(0).uniform(0, 5, (30, 1))


def learnable(text: str) -> dict[str, torch.nn.Module]:
    functional = (
        Wrap(2.0) @ OrbitAverage(MirrorOrbit(1.0, (0,))) @ OrbitAverage(MirrorOrbit(1.0, (0,), True, False))
    )
    kernel = parse(text, 1)
    return {"likelihood": Gaussian(), "mean": ConstantMean(), "functional": functional, "kernel": kernel}


@pytest.mark.parametrize("name", BASES)
def test_everything_that_is_learned_has_a_weak_hyperprior(name: str):
    modules = learnable(f"{name}*rbf")
    parts = parts_of(modules, {})
    priors = weak_hyperpriors(modules, X)
    assert list(priors) == [part.name for part in parts]
    assert {"likelihood.noise", "mean.constant"} < set(priors)
    assert sum(each.endswith((".centre", ".log_period")) for each in priors) >= 2
    joint = JointHyperprior(parts, priors)
    assert bool(joint.log_density(torch.zeros(joint.dimension, dtype=torch.float64)).isfinite())


def test_weak_hyperpriors_are_normal_in_the_coordinates_that_are_learned():
    """Lengthscales log N(log spread, 1.5²), noise log N(log 0.05, 2²), centres N(mean, (1.5 spread)²)."""
    modules = {"likelihood": Gaussian(0.3), "kernel": parse("rbf*linear", 1)}
    parts = parts_of(modules, {})
    joint = JointHyperprior(parts, weak_hyperpriors(modules, X))
    spread, mean = float(X.std()), float(X.mean())
    laws = {
        "likelihood.noise": (math.log(0.05), 2.0),
        "kernel.kernels.0.lengthscale": (math.log(spread), 1.5),
        "kernel.kernels.1.variance": (math.log(0.5 / spread**2), 2.0),
        "kernel.kernels.1.centre": (mean, 1.5 * spread),
    }
    assert {part.name for part in parts} == set(laws)
    z = torch.linspace(-1, 1, joint.dimension, dtype=torch.float64)
    expected = sum(norm.logpdf(at, *laws[part.name]) for at, part in zip(z.tolist(), parts, strict=True))
    assert joint.log_density(z).item() == pytest.approx(expected, rel=1e-12)


def test_weak_hyperpriors_follow_the_units_of_the_inputs():
    def medians(x: np.ndarray) -> np.ndarray:
        priors = weak_hyperpriors({"kernel": parse("rbf + periodic", 1)}, x)
        return np.array([prior.location.item() for prior in priors.values()])

    difference = medians(10 * X) - medians(X)
    assert difference[difference != 0] == pytest.approx(np.log(10.0) * np.ones(2))
