"""The recognition network: positive tilts that start equal, learn from the bound, pass over idle inputs."""

import torch

from orbitwise.likelihoods import Bernoulli
from orbitwise.likelihoods.recognition import START, Recognition
from orbitwise.process.process import Moments

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.where(X[:, :2] > 0, 1.0, -1.0).double()


def network(x: torch.Tensor = X) -> Recognition:
    return Recognition(x, 2, torch.Generator().manual_seed(1))


def test_tilts_start_equal_and_are_positive():
    torch.testing.assert_close(network()(X, TARGETS), torch.full((60, 2), START).double())
    trained = network()
    with torch.no_grad():
        trained.second.normal_(0, 5, generator=torch.Generator().manual_seed(2))
    tilts = trained(X, TARGETS)
    assert bool((tilts > 0).all())
    assert tilts.std() > 0.1


def test_the_start_depends_on_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = network(), network()
    torch.testing.assert_close(first.first, second.first)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_learns_the_root_of_the_mean_square_from_the_bound():
    """E[f²] differs from row to row; the bound alone must teach it."""
    mean = 3 * X[:, :2]
    square = mean.square() + 0.1
    at = Moments(mean, torch.full_like(mean, 0.1), square)
    recognition = network()
    optimizer = torch.optim.Adam(recognition.parameters(), lr=0.05)

    def bound(tilt: torch.Tensor) -> torch.Tensor:
        return Bernoulli().expected_log_likelihood(at, TARGETS, tilt).sum()

    best, start = bound(square.sqrt()), bound(torch.ones_like(square))
    for _ in range(150):
        optimizer.zero_grad()
        (-bound(recognition(X, TARGETS))).backward()
        optimizer.step()
    learned = bound(recognition(X, TARGETS))
    assert best - learned < 0.15 * (best - start), "most of the gap is closed"
    assert learned <= best


def test_a_coordinate_that_never_varies_is_ignored():
    idle = torch.cat([X, torch.full((60, 1), 7.0)], dim=-1)
    recognition = network(idle)
    with torch.no_grad():
        recognition.second.fill_(1.0)
    moved = idle.clone()
    moved[:, 3] = -100
    torch.testing.assert_close(recognition(idle, TARGETS), recognition(moved, TARGETS))
    shorter = recognition(idle.float(), TARGETS.float())
    torch.testing.assert_close(shorter, recognition(idle, TARGETS), atol=1e-5, rtol=0)
