"""The stochastic bound and its gradients are unbiased: all draws of finite orbits, z-scores on a density.

Every case also shows that the naive estimate, in which draws meet themselves, is not.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor, nn

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.functional import Atoms, exact_atoms
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.posterior import Whitened
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.inference.stochastic.variational import bound_terms
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian, Likelihood
from orbitwise.likelihoods.bernoulli import stick_breaking_targets
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.orbits.orbit import Group
from orbitwise.process import Process
from orbitwise.transforms import Translation, coordinate_permutations

ROWS, SIZE, OUTPUTS, ELEMENTS = 4, 5, 2, 6
PERMUTATIONS = coordinate_permutations(3)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = seeded(ROWS, 3), seeded(SIZE, 3, seed=1)
LABELS = torch.tensor([0, 2, 1, 2])
SLACK, TILT = seeded(ROWS, seed=3).square(), seeded(ROWS, OUTPUTS, seed=4).abs()
LIKELIHOODS: list[tuple[Callable[[], Likelihood], Tensor]] = [
    (lambda: Gaussian(0.2, OUTPUTS), seeded(ROWS, OUTPUTS, seed=2)),
    (Bernoulli, torch.where(seeded(ROWS, OUTPUTS, seed=2) > 0, 1.0, -1.0).double()),
    (Bernoulli, stick_breaking_targets(LABELS, 3)),
    (Dirichlet, one_hot(LABELS % 2, 2)),
]
NAMES = ["Gaussian", "Bernoulli", "sticks", "Dirichlet"]


def q_of(size: int = SIZE, outputs: int = OUTPUTS) -> Whitened:
    root = seeded(outputs, size, size, seed=5)
    return Whitened(root @ root.mT + torch.eye(size), seeded(size, outputs, seed=6))


class Model(nn.Module):
    """Everything that the bound depends on."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.process = Process(None, ScaleKernel(RBFKernel())).double()
        self.likelihood = likelihood
        self.inducing = nn.Parameter(Z.clone())

    def data(self, atoms: Atoms, targets: Tensor, method: str = "halves") -> Tensor:
        """The data term, with slack and tilt given; rows may come many times over."""
        times = atoms.num_rows // ROWS
        lower = inducing_factor(self.process, self.inducing)
        slack, tilt = SLACK.repeat(times), TILT.repeat(times, 1)
        targets = targets.repeat(times, 1)
        terms = bound_terms(
            self.process, self.likelihood, q_of(), self.inducing, lower, atoms, targets, slack, tilt, method
        )
        return terms.data / times

    def gradients(self, value: Tensor) -> list[Tensor]:
        free = [p for p in self.parameters() if p.requires_grad]
        return list(torch.autograd.grad(value, free, allow_unused=True, materialize_grads=True))


def finite_differences(model: Model, value: Callable[[], Tensor], step: float = 1e-5) -> list[Tensor]:
    """The gradient of `value()` by every parameter, entry by entry."""
    found = []
    for parameter in (p for p in model.parameters() if p.requires_grad):
        slope = torch.zeros_like(parameter)
        for place in range(parameter.numel()):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[place] += sign * step
                    ends.append(value().item())
                    parameter.view(-1)[place] -= sign * step
            slope.view(-1)[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


def all_elements() -> Atoms:
    return OrbitAverage(FiniteOrbit(PERMUTATIONS)).atoms(X)


def every_draw(sizes: tuple[int, ...]) -> Atoms:
    """Every way to draw groups of these sizes without replacement, all rows for each way."""
    moved = PERMUTATIONS.all_elements(X)
    ways: list[tuple[int, ...]] = [()]
    for size in sizes:
        ways = [way + more for way in ways for more in combinations(range(ELEMENTS), size)]
    points = moved[:, torch.tensor(ways)].transpose(0, 1).flatten(0, 1)
    draw = torch.cat([torch.full((size,), group + 1) for group, size in enumerate(sizes)])
    weights = torch.full(points.shape[:2], 1 / sum(sizes), dtype=torch.float64)
    groups = (Group(1, ELEMENTS),) * len(sizes)
    return replace(exact_atoms(points, weights), draw=draw, groups=groups)


@pytest.mark.parametrize(("make", "targets"), LIKELIHOODS, ids=NAMES)
@pytest.mark.parametrize(
    ("sizes", "method"),
    [((3,), "halves"), ((2, 2), "halves"), ((2, 2), "all_pairs"), ((1, 1), "halves"), ((6,), "halves")],
    ids=["one subset", "two halves", "all pairs", "two draws", "all elements"],
)
def test_the_mean_over_all_draws_is_the_exact_bound_and_so_are_gradients(make, targets, sizes, method):
    model, atoms = Model(make()), every_draw(sizes)
    exact, mean = model.data(all_elements(), targets), model.data(atoms, targets, method)
    assert mean.item() == pytest.approx(exact.item(), rel=1e-10)
    for drawn, right in zip(model.gradients(mean), model.gradients(exact), strict=True):
        torch.testing.assert_close(drawn, right, rtol=1e-7, atol=1e-9)
    if sizes != (6,):
        naive = model.data(atoms.frozen(), targets)
        assert abs(naive - exact) > 0.01, "draws that meet themselves are biased"


@pytest.mark.parametrize(("make", "targets"), LIKELIHOODS, ids=NAMES)
def test_gradients_of_the_exact_bound_are_its_finite_differences(make, targets):
    model = Model(make())
    right = finite_differences(model, lambda: model.data(all_elements(), targets))
    mine = model.gradients(model.data(all_elements(), targets))
    for gradient, slope in zip(mine, right, strict=True):
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)
        assert bool((gradient != 0).any())


class Shifted(Model):
    """f(x) = E[g(x + α)] with α normal on an RBF kernel, where everything has a closed form."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__(likelihood)
        kernel = self.process.kernel
        kernel.base_kernel.lengthscale, kernel.outputscale = 1.1, 1.7
        self.orbit = SampledOrbit(Translation(3), -0.4, 0.6, density="normal", num_samples=4).double()

    def closed_form(self, targets: Tensor) -> Tensor:
        """The data term without an engine: a shift of variance v turns l² into l² + v, twice for k_f."""
        kernel = self.process.kernel
        scale, square = kernel.outputscale, kernel.base_kernel.lengthscale[0].square()
        centre, spread = (self.orbit.lower + self.orbit.upper) / 2, (self.orbit.upper - self.orbit.lower) / 2
        wide, wider = square + spread.square(), square + 2 * spread.square()
        distance = ((X[:, None] + centre - self.inducing).square() / wide).sum(-1)
        cross = scale * (square / wide).sqrt().prod() * torch.exp(-0.5 * distance)
        prior = scale * (square / wider).sqrt().prod()
        between = (self.inducing[:, None] - self.inducing).square().sum(-1) / square
        lower = torch.linalg.cholesky(scale * torch.exp(-0.5 * between))
        columns = torch.linalg.solve_triangular(lower, cross.T, upper=False)
        q = q_of()
        mean = columns.T @ q.mean
        covered = torch.einsum("un,cuw,wn->nc", columns, torch.linalg.inv(q.precision), columns)
        if isinstance(self.likelihood, Gaussian):
            curvature = (1 / self.likelihood.noise).expand_as(mean)
            expected = torch.distributions.Normal(targets, curvature.rsqrt()).log_prob(mean)
            expected = expected - 0.5 * curvature * covered
        else:
            seen, theta = targets.abs(), torch.tanh(TILT / 2) / (2 * TILT)
            curvature = seen * theta
            expected = 0.5 * targets * mean - 0.5 * curvature * (mean.square() + covered - TILT.square())
            expected = expected - seen * torch.log(2 * torch.cosh(TILT / 2))
        residual = (prior - columns.square().sum(0))[:, None]
        slack = curvature * SLACK[:, None]
        excess = (curvature * residual - slack) / (1 + slack)
        return (expected - 0.5 * (torch.log1p(slack) + excess)).sum()


DENSITY_CASES = [
    (lambda: Gaussian(0.3), LIKELIHOODS[0][1], "halves"),
    (lambda: Gaussian(0.3), LIKELIHOODS[0][1], "all_pairs"),
    (Bernoulli, LIKELIHOODS[1][1], "halves"),
    (Bernoulli, LIKELIHOODS[2][1], "halves"),
]


@pytest.mark.parametrize(
    ("make", "targets", "method"), DENSITY_CASES, ids=["Gaussian", "all pairs", *NAMES[1:3]]
)
def test_bound_and_gradients_on_a_density_are_those_of_the_closed_form(make, targets, method):
    """Kernel, bounds of the orbit, noise and inducing points; the true gradients by finite differences."""
    model, repeats, generator = Shifted(make()), 25, torch.Generator().manual_seed(0)
    rows = X.repeat(repeats, 1)

    def collected(frozen: bool, count: int) -> Tensor:
        """The bound and all its gradients from `count` batches of draws."""
        drawn = []
        for _ in range(count):
            atoms = OrbitAverage(model.orbit).atoms(rows, generator)
            value = model.data(atoms.frozen() if frozen else atoms, targets, method)
            drawn.append(flat(value.detach(), model.gradients(value)))
        return torch.stack(drawn)

    slopes = finite_differences(model, lambda: model.closed_form(targets))
    truth = flat(model.closed_form(targets).detach(), slopes)
    names = [name for name, _ in model.named_parameters()]
    assert sum("orbit" in name for name in names) >= 2
    mine, naive = collected(False, 60), collected(True, 8)
    assert z_scores(mine, truth).abs().max() < 4
    assert z_scores(naive, truth).abs().max() > 8, "the naive estimate is seen to be wrong"


def flat(value: Tensor, slopes: list[Tensor]) -> Tensor:
    return torch.cat([value[None], *(slope.flatten() for slope in slopes)])


def z_scores(drawn: Tensor, truth: Tensor) -> Tensor:
    """Of the means; an entry that never varies must be right to rounding."""
    error = drawn.std(0) / len(drawn) ** 0.5
    return (drawn.mean(0) - truth) / error.clamp_min(1e-6)


def test_minibatches_are_unbiased():
    """The mean over all pairs of rows, scaled by N/B, is the bound of all rows."""
    trainer = StochasticTrainer(
        LatentModel(Process(None, RBFKernel()).double(), Evaluation(), Bernoulli()),
        Observations(Evaluation(), X, LIKELIHOODS[1][1]),
        Z,
        torch.Generator().manual_seed(0),
        batch_size=2,
    )
    trainer.q = q_of()
    pairs = [torch.tensor(pair) for pair in combinations(range(ROWS), 2)]
    with torch.no_grad():
        whole = trainer.bound_on(torch.arange(ROWS)).data
        parts = torch.stack([ROWS / 2 * trainer.bound_on(pair).data for pair in pairs])
    torch.testing.assert_close(parts.mean(), whole)
    assert parts.std() > 0.1
    assert trainer.estimate(1).mean == pytest.approx((whole - trainer.q.divergence()).item())
