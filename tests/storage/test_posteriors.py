"""Functionals, rows, likelihoods and posteriors come back; those that make no sense are refused."""

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from orbitwise.functionals import (
    Combination,
    Difference,
    DirectionalDerivative,
    DirectionalDerivatives,
    Evaluation,
    FiniteDifference,
    Functional,
    Gradient,
    ImageTangent,
    LocalAverage,
    OrbitAverage,
    OrbitSum,
    TransformationDerivative,
    Wrap,
    average_minus_value,
)
from orbitwise.inference.exact import ExactPosterior, condition
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened, WhitenedFactor
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.storage import StorageError
from orbitwise.transforms import Rotation, coordinate_permutations
from tests.storage.round_trip import again

X = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SWAPS = FiniteOrbit(coordinate_permutations(2))
SLOPE = torch.tensor([0.6, -0.8], dtype=torch.float64)

FUNCTIONALS = {
    "value": Evaluation(),
    "wrapped": OrbitAverage(SWAPS) @ Wrap(0.7, 1),
    "average": OrbitAverage(SWAPS),
    "sum": OrbitSum(SWAPS),
    "local": average_minus_value(SampledOrbit(Rotation(2), -1.0, 1.0).freeze(3, torch.Generator())),
    "slope": DirectionalDerivative(SLOPE) @ OrbitAverage(SWAPS),
    "gradient": Gradient([1]) @ OrbitAverage(SWAPS),
    "difference": FiniteDifference(SLOPE, 0.1, 2),
    "local closed form": LocalAverage(0.4) - 2 * LocalAverage(0.3),
    "slopes": DirectionalDerivatives(torch.stack([SLOPE, SLOPE.flip(0)])),
    "tangents": ImageTangent((1, 2), ["log_scale", ("shift_x", 0.5)], 0.7),
    "turning": TransformationDerivative(Rotation(2), "angle"),
    "scaled": 2.5 * Evaluation() - OrbitAverage(SWAPS),
}


@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functionals_come_back(name: str):
    functional: Functional = FUNCTIONALS[name].double()
    back = again(functional)
    process = Process(None, RBFKernel().double())
    first, second = (process.covariance(each.atoms(X)).detach() for each in (functional, back))
    assert torch.equal(first, second)
    assert functional.is_identity == back.is_identity


def test_pairs_come_back():
    pairs = torch.stack([X, 2 * X], 1)
    assert torch.equal(Difference().atoms(pairs).weights, again(Difference()).atoms(pairs).weights)


def posterior(name: str) -> ExactPosterior | SparsePosterior:
    process = Process(ConstantMean().double(), RBFKernel().double())
    with torch.no_grad():
        if name == "exact":
            rows = [FUNCTIONALS["average"].atoms(X), FUNCTIONALS["gradient"].atoms(X)]
            return condition(process, rows, torch.ones(10, 2).double(), torch.full((10,), 0.1).double())
        size = torch.arange(5.0, dtype=torch.float64)
        precision = 2 * torch.eye(5, dtype=torch.float64) + torch.outer(size, size) / 10
        if name == "factor":
            q = WhitenedFactor(5, 2, shared=False)
            q.raw += 0.1
            q.mean += 0.2
            return SparsePosterior(process, X, q)
        inducing = OrbitAverage(SWAPS).atoms(X) if name == "rows" else X
        separate = torch.stack([precision, 3 * precision]) if name == "separate" else precision
        return SparsePosterior(process, inducing, Whitened(separate, torch.ones(5, 2).double()))


@pytest.mark.parametrize("name", ["exact", "shared", "separate", "factor", "rows"])
def test_posteriors_come_back(name: str):
    one = posterior(name)
    back, functional = again([one, FUNCTIONALS["average"]])
    with torch.no_grad():
        first, second = one.moments(FUNCTIONALS["average"], X), back.moments(functional, X)
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(first.variance, second.variance)
        rows = [each.atoms(X) for each in (FUNCTIONALS["average"], functional)]
        assert torch.equal(one.covariance(rows[0]), back.covariance(rows[1]))
    if isinstance(back, ExactPosterior):
        assert back.rows[0].symmetry is not None
        assert back.rows[0].symmetry.token is functional.orbit
        assert torch.equal(one.leave_one_out().mean, back.leave_one_out().mean)


def test_an_asserted_invariance_is_checked_once():
    process = Process(None, RBFKernel().double(), one_sided=True)
    process._checked.append(SWAPS)
    back = again(process)
    assert back.one_sided is True
    assert len(back._checked) == 1


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Gaussian(0.3, 2, learnable=False), Dirichlet(0.1)])
def test_likelihoods_come_back(likelihood):
    back = again(likelihood)
    assert likelihood.shares_curvature == back.shares_curvature
    targets = torch.ones(3, 2, dtype=torch.float64)
    assert torch.equal(likelihood.quadratic(targets).curvature, back.quadratic(targets).curvature)
    assert [p.requires_grad for p in likelihood.parameters()] == [p.requires_grad for p in back.parameters()]
    assert isinstance(again(Bernoulli()), Bernoulli)


def broken(name: str) -> object:
    exact, sparse, rows = posterior("exact"), posterior("shared"), OrbitAverage(SWAPS).atoms(X)
    gradients = Gradient().atoms(X)
    q = Whitened(torch.eye(5, dtype=torch.float64), torch.ones(5, 2).double())
    if name in ("weights", "lower", "targets"):
        setattr(exact, name, getattr(exact, name)[:-1])
        return exact
    if name == "narrow":
        exact.rows = [exact.rows[0], Evaluation().atoms(X[:, :1])]
        return exact
    if name == "inducing":
        sparse.inducing = X[:-1]
        return sparse
    if name == "q":
        sparse.q = Whitened(torch.eye(4, dtype=torch.float64), torch.ones(4, 2).double())
        return sparse
    if name == "mean":
        q.mean = q.mean[:-1]
        return q
    if name == "parts":
        sum_ = Combination([Evaluation()], [1.0])
        sum_.factors = [1.0, 2.0]
        return sum_
    if name == "factor":
        factor = WhitenedFactor(3, 2, shared=True)
        factor.raw = torch.nn.Parameter(torch.zeros(4, 4).double())
        return factor
    wrong = {
        "directions": {"directions": gradients.directions[:-1]},
        "atom weights": {"weights": rows.weights[:-1]},
        "order": {"order": rows.order[:-1]},
        "points": {"points": rows.points[0]},
        "tangents": {"tangents": rows.points[:-1]},
        "blur": {"blur": torch.ones(5, dtype=torch.float64)},
        "negative blur": {"blur": -torch.ones(2, dtype=torch.float64)},
        "symmetry": {"symmetry": replace(rows.symmetry, size=3)},
    }
    # Bypasses the shapes that are checked whenever a test calls the constructor.
    copy = replace(gradients if name == "directions" else rows)
    for field, value in wrong[name].items():
        object.__setattr__(copy, field, value)
    return copy


@pytest.mark.parametrize(
    "name",
    [
        *("weights", "lower", "targets", "inducing", "q", "mean", "parts", "factor"),
        *("atom weights", "order", "points", "tangents", "symmetry", "directions", "narrow"),
        *("blur", "negative blur"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str):
    with pytest.raises(StorageError, match=r"can be built from what it holds|is wrong"):
        again(broken(name))


def test_rows_with_a_blur_come_back():
    rows = (LocalAverage(0.4) + Evaluation()).atoms(X)
    back = again(rows)
    assert torch.equal(back.blur, rows.blur)
    kernel = RBFKernel().double()
    process = Process(None, kernel)
    assert torch.equal(process.covariance(rows).detach(), process.covariance(back).detach())


def test_rows_drawn_at_random_are_refused():
    rows = OrbitAverage(SampledOrbit(Rotation(2), -1.0, 1.0)).atoms(X, torch.Generator())
    with pytest.raises(StorageError, match="drawn at random"):
        again(rows)
