import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.functionals import OrbitAverage
from orbitwise.inference.exact import evidence
from orbitwise.orbits import FiniteOrbit, PatchOrbit, SampledOrbit, WeightedOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation, cyclic_shifts, negation
from tests.contracts.annotations import unchecked
from tests.contracts.learnable_contract import assert_gradients_reach_what_is_learned
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


class TestWeightedOrbit(OrbitContract):
    @pytest.fixture(params=["softmax", "free", "frozen"])
    def case(self, request):
        return {
            "softmax": lambda: (WeightedOrbit(FiniteOrbit(cyclic_shifts(4))), 4),
            "free": lambda: (WeightedOrbit(FiniteOrbit(cyclic_shifts(4)), "free"), 4),
            "frozen": lambda: (WeightedOrbit(SampledOrbit(Rotation(2), -1.0, 1.0).freeze(3, seeded())), 2),
        }[request.param]()

    def test_gradients_reach_every_weight(self, case):
        orbit, width = case
        assert_gradients_reach_what_is_learned(orbit, inputs(width))


@pytest.mark.parametrize("weighting", ["softmax", "free"])
def test_it_starts_as_the_average(weighting):
    plain = FiniteOrbit(cyclic_shifts(4))
    weighted = WeightedOrbit(plain, weighting)
    assert weighted.size == 4
    first, second = plain.points(inputs(4)), weighted.points(inputs(4))
    assert torch.equal(first.points, second.points)
    torch.testing.assert_close(first.weights, second.weights.detach())
    assert second.weights.stride(0) == 0
    assert second.symmetry is None, "weights break the symmetry of the elements"


def test_softmax_weights_sum_to_one_and_free_ones_do_not():
    for weighting in ("softmax", "free"):
        orbit = WeightedOrbit(FiniteOrbit(cyclic_shifts(3)), weighting)
        with torch.no_grad():
            orbit.raw[:] = torch.tensor([0.0, math.log(2), -1.0])
        total = orbit.points(inputs(3)).weights.sum(-1)
        if weighting == "softmax":
            torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64))
            assert (orbit.weights > 0).all()
            assert (orbit.weights[1] / orbit.weights[0]).item() == pytest.approx(2)
        else:
            assert orbit.weights.tolist() == pytest.approx([0.0, math.log(2), -1.0])
            assert total[0].item() == pytest.approx(math.log(2) - 1)


def test_weights_of_the_orbit_itself_stay_factors():
    odd = FiniteOrbit(negation(2), weights=torch.tensor([1.0, -1.0]))
    assert WeightedOrbit(odd).points(inputs(2)).weights[0].tolist() == pytest.approx([0.5, -0.5])


def test_the_evidence_finds_the_elements_that_matter():
    """f(x) = g(x₁, x₀): of the identity and the exchange the evidence keeps the second."""
    x = torch.randn(40, 2, generator=seeded(), dtype=torch.float64)
    orbit = WeightedOrbit(FiniteOrbit(cyclic_shifts(2)))
    kernel = RBFKernel(ard_num_dims=2).double()
    # the base kernel looks mostly at its first argument, the data depend on the second
    kernel.lengthscale = torch.tensor([[0.7, 20.0]])
    kernel.raw_lengthscale.requires_grad_(False)
    process, average = Process(None, kernel), OrbitAverage(orbit)
    y = (2 * x[:, 1:]).sin()
    noise = torch.full((40,), 0.01, dtype=torch.float64)
    optimizer = torch.optim.Adam(orbit.parameters(), lr=0.3)
    for _ in range(30):
        optimizer.zero_grad()
        (-evidence(process, average.atoms(x), y, noise).value).backward()
        optimizer.step()
    assert orbit.weights[1] > 0.95


def test_patch_weights():
    orbit = WeightedOrbit(PatchOrbit((3, 4), (2, 2)), "free")
    assert orbit.points(inputs(12)).points.shape == (3, 6, 4)
    assert_gradients_reach_what_is_learned(orbit, inputs(12))


def test_it_says_what_it_learned():
    orbit = WeightedOrbit(FiniteOrbit(cyclic_shifts(4)))
    assert orbit.learned()["weight"] == pytest.approx((0.25, 0.25))
    assert repr(orbit) == "WeightedOrbit(FiniteOrbit, weight +0.25 to +0.25)"
    frozen = WeightedOrbit(SampledOrbit(Rotation(2), -1.0, 1.0).freeze(3, seeded()))
    assert set(frozen.learned()) == {"angle", "weight"}


def test_fixed_weights():
    fixed = WeightedOrbit(FiniteOrbit(cyclic_shifts(4)), learnable=False)
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"FiniteOrbit is drawn at random.*leave out num_samples"):
        WeightedOrbit(FiniteOrbit(cyclic_shifts(4), num_samples=2))
    with pytest.raises(ValueError, match="SampledOrbit is drawn at random"):
        WeightedOrbit(SampledOrbit(Rotation(2), -1.0, 1.0))
    with unchecked(), pytest.raises(ValueError, match="'softmax' or 'free', not 'sparse'"):
        WeightedOrbit(FiniteOrbit(cyclic_shifts(4)), "sparse")
