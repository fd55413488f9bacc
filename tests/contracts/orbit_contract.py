"""What every orbit promises. A test class inherits the contract and defines `case`: (orbit, width)."""

import pytest
import torch
from torch import Tensor

from orbitwise.orbits import Orbit
from tests.contracts.annotations import unchecked

Case = tuple[Orbit, int]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(width: int, rows: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(rows, width, generator=seeded(1), dtype=torch.float64).to(dtype)


class OrbitContract:
    """Holds for finite, drawn and frozen orbits."""

    fits_any_width: bool = False

    @pytest.fixture
    def case(self) -> Case:
        raise NotImplementedError

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_points_and_weights_fit_the_input(self, case: Case, dtype: torch.dtype):
        orbit, width = case
        moved = orbit.points(inputs(width, dtype=dtype), seeded())
        rows, samples, last = moved.points.shape
        assert (rows, last) == (3, width)
        assert moved.weights.shape == (3, samples)
        assert moved.points.dtype == moved.weights.dtype == dtype
        assert moved.draw.shape == (samples,)
        assert moved.draw.dtype == torch.long

    def test_a_generator_makes_draws_repeatable(self, case: Case):
        orbit, width = case
        x = inputs(width)
        first, again = orbit.points(x, seeded(3)), orbit.points(x, seeded(3))
        assert torch.equal(first.points, again.points)
        assert torch.equal(first.weights, again.weights)
        other = orbit.points(x, seeded(4))
        assert torch.equal(first.points, other.points) is not orbit.is_drawn

    def test_no_global_randomness_with_a_generator(self, case: Case):
        orbit, width = case
        before = torch.get_rng_state()
        orbit.points(inputs(width), seeded())
        assert torch.equal(torch.get_rng_state(), before)

    def test_draws_are_recorded(self, case: Case):
        orbit, width = case
        moved = orbit.points(inputs(width), seeded())
        if not orbit.is_drawn:
            assert moved.groups == ()
            assert (moved.draw == 0).all()
            return
        numbers, counts = moved.draw.unique(return_counts=True)
        assert numbers.tolist() == list(range(1, len(moved.groups) + 1))
        assert len(set(counts.tolist())) == 1
        assert {group.family for group in moved.groups} == {1}
        assert {group.population for group in moved.groups} == {orbit.size}

    def test_a_symmetry_marks_whole_runs_with_the_identity_first(self, case: Case):
        orbit, width = case
        x = inputs(width)
        moved = orbit.points(x, seeded())
        if moved.symmetry is None:
            return
        assert not orbit.is_drawn
        assert moved.points.shape[1] % moved.symmetry.size == 0
        torch.testing.assert_close(moved.points[:, :: moved.symmetry.size], x[:, None], rtol=0, atol=1e-12)

    def test_points_differentiate_along_the_input(self, case: Case):
        orbit, width = case
        x = inputs(width)
        direction = torch.randn(x.shape, generator=seeded(5), dtype=torch.float64)
        _, slope = torch.func.jvp(lambda y: orbit.points(y, seeded()).points, (x,), (direction,))
        step = 1e-5
        ahead, behind = (orbit.points(x + h * direction, seeded()).points for h in (step, -step))
        torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)

    def test_rows_of_an_exact_orbit_do_not_meet(self, case: Case):
        orbit, width = case
        x = inputs(width)
        if orbit.is_drawn:
            return
        together = orbit.points(x)
        for i in range(3):
            torch.testing.assert_close(orbit.points(x[i : i + 1]).points[0], together.points[i])

    def test_bad_input(self, case: Case):
        orbit, width = case
        with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
            orbit.points(torch.ones(2, width, dtype=torch.long))
        with unchecked(), pytest.raises(ValueError, match="list"):
            orbit.points([[0.0] * width])
        for shape in [(width,), (0, width), (2, 0), (1, 2, width)]:
            with unchecked(), pytest.raises(ValueError, match=r"\[n, d\], not shape \("):
                orbit.points(torch.zeros(shape))

    def test_a_transform_that_does_not_fit_the_width(self, case: Case):
        orbit, width = case
        wrong = torch.zeros(2, width + 1)
        if self.fits_any_width:
            assert orbit.points(wrong, seeded()).points.shape[-1] == width + 1
            return
        with pytest.raises(ValueError, match=rf"\b{width + 1}\b"):
            orbit.points(wrong)

    def test_the_orbit_can_be_copied_and_cast(self, case: Case):
        orbit, width = case
        x = inputs(width)
        state = {name: value.clone() for name, value in orbit.state_dict().items()}
        orbit.load_state_dict(state)
        before = orbit.points(x, seeded()).points
        torch.testing.assert_close(orbit.double().points(x, seeded()).points, before, rtol=0, atol=1e-6)
