"""What every functional promises. A test class inherits the contract and defines the fixture `case`: a Case.

The truth is computed by hand: a functional of a *known* function g is a sum over a few values and slopes of
g, written as a plain loop. Applying the atoms to the same g must give the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from orbitwise.functionals import Atoms, Block, Functional
from tests.contracts.annotations import unchecked
from tests.contracts.orbit_contract import inputs, seeded


@dataclass(frozen=True)
class Waves:
    """g(x) = Σ_j a_j sin(b_j·x + c_j), a function whose slopes are known."""

    amplitude: Tensor
    frequency: Tensor
    phase: Tensor

    @staticmethod
    def random(width: int, seed: int = 11) -> "Waves":
        generator = seeded(seed)
        shapes = ((5,), (5, width), (5,))
        return Waves(*(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes))

    def __call__(self, point: Tensor) -> Tensor:
        """g at one point [d]."""
        return (self.amplitude * (self.frequency @ point.double() + self.phase).sin()).sum()

    def gradient(self, point: Tensor) -> Tensor:
        """∇g at one point [d]."""
        return (self.amplitude * (self.frequency @ point.double() + self.phase).cos()) @ self.frequency

    def slope(self, point: Tensor, direction: Tensor) -> Tensor:
        """∂_v g at one point."""
        return self.gradient(point) @ direction.double()


Function = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """A functional, the shape of an input, and the same by hand: a function of g and one input."""

    functional: Functional
    shape: tuple[int, ...]
    by_hand: Callable[[Waves, Tensor], Tensor]
    width_of_g: int | None = None
    tolerance: float = 1e-9


def apply(block: Block, g: Waves) -> Tensor:
    """Σ_s w_is D_s g(p_is) for every row, one atom at a time."""
    atoms = block.expand()
    assert atoms.points.dim() == 3
    rows = []
    for i in range(atoms.num_rows):
        total = torch.zeros((), dtype=torch.float64)
        for s in range(atoms.num_atoms):
            point, weight = atoms.points[i, s], atoms.weights[i, s].double()
            if atoms.order[s] == 0:
                total = total + weight * g(point)
            else:
                total = total + weight * g.slope(point, atoms.tangents[i, s])
        rows.append(total)
    return torch.stack(rows)


def slope_of(f: Function, point: Tensor, direction: Tensor, step: float = 1e-5) -> Tensor:
    """The slope of any function of one input, by central differences."""
    return (f(point + step * direction) - f(point - step * direction)) / (2 * step)


def mean_over(f: Function, points: Tensor) -> Tensor:
    """The mean of a function over some points."""
    return torch.stack([f(point) for point in points]).mean(0)


def points_like(case: Case, rows: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    size = torch.Size(case.shape).numel()
    return inputs(size, rows=rows, dtype=dtype).reshape(rows, *case.shape)


class FunctionalContract:
    """Holds for functionals without randomness."""

    @pytest.fixture
    def case(self) -> Case:
        raise NotImplementedError

    def test_equals_the_functional_by_hand(self, case: Case):
        x = points_like(case)
        g = Waves.random(case.width_of_g or case.shape[-1])
        expected = torch.stack([case.by_hand(g, row) for row in x]).flatten()
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(apply(case.functional.atoms(x), g), expected, rtol=0, atol=case.tolerance)

    def test_rows_do_not_meet(self, case: Case):
        x = points_like(case)
        g = Waves.random(case.width_of_g or case.shape[-1])
        together = apply(case.functional.atoms(x), g).reshape(3, -1)
        for i in range(3):
            alone = apply(case.functional.atoms(x[i : i + 1]), g)
            torch.testing.assert_close(alone, together[i], rtol=1e-12, atol=1e-9)

    def test_shapes_and_precision(self, case: Case):
        exact = case.functional.atoms(points_like(case))
        single = case.functional.atoms(points_like(case, dtype=torch.float32))
        for block, dtype in ((exact, torch.float64), (single, torch.float32)):
            rows, atoms, width = block.points.shape
            assert rows == 3
            assert width == (case.width_of_g or case.shape[-1])
            assert block.weights.shape == (rows, atoms)
            assert block.points.dtype == block.weights.dtype == dtype
            if isinstance(block, Atoms):
                assert block.order.shape == block.draw.shape == (atoms,)
                assert block.tangents is None or block.tangents.shape == block.points.shape
                assert (block.tangents is None) == bool((block.order == 0).all())
        torch.testing.assert_close(single.points.double(), exact.points, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(single.weights.double(), exact.weights, rtol=1e-3, atol=1e-4)

    def test_nothing_is_drawn(self, case: Case):
        block = case.functional.atoms(points_like(case), seeded())
        assert not block.is_drawn
        if isinstance(block, Atoms):
            assert block.groups == ()
            assert (block.draw == 0).all()

    def test_what_engines_ask_of_a_block(self, case: Case):
        block = case.functional.atoms(points_like(case))
        atoms = block.expand()
        assert atoms.is_expanded
        assert atoms.num_rows == block.num_rows
        torch.testing.assert_close(block.constant_part(), atoms.constant_part())
        torch.testing.assert_close(block.linear_part(), atoms.linear_part())
        one = torch.ones(1).double()
        constant = Waves(one, torch.zeros(1, block.points.shape[-1]).double(), one * torch.pi / 2)
        torch.testing.assert_close(block.constant_part(), apply(block, constant))
        single = block.to(torch.float32)
        assert single.points.dtype == single.expand().weights.dtype == torch.float32
        assert torch.equal(block.frozen().points, block.points)
        assert (block.has_values, block.has_slopes) == (atoms.has_values, atoms.has_slopes)
        assert (block.slopes() is None) == block.has_values
        if (slopes := block.slopes()) is not None:
            assert torch.equal(slopes.expand().filled_tangents, atoms.filled_tangents)

    def test_linear_combinations(self, case: Case):
        x = points_like(case)
        g = Waves.random(case.width_of_g or case.shape[-1])
        once = apply(case.functional.atoms(x), g)
        for combination, factor in (
            (2.5 * case.functional, 2.5),
            (case.functional * -0.5, -0.5),
            (-case.functional, -1.0),
        ):
            torch.testing.assert_close(apply(combination.atoms(x), g), factor * once)

    def test_gradients_reach_the_input(self, case: Case):
        x = points_like(case).requires_grad_()
        g = Waves.random(case.width_of_g or case.shape[-1])
        (gradient,) = torch.autograd.grad(apply(case.functional.atoms(x), g).sum(), x)
        direction = torch.randn(x.shape, generator=seeded(4), dtype=torch.float64)
        step = 1e-5
        with torch.no_grad():
            ahead, behind = (apply(case.functional.atoms(x + h * direction), g).sum() for h in (step, -step))
        slope = (gradient * direction).sum()
        torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4)

    def test_bad_input(self, case: Case):
        x = points_like(case)
        with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
            case.functional.atoms(x.long())
        with unchecked(), pytest.raises(ValueError, match="list"):
            case.functional.atoms(x.tolist())
        for wrong in (x[0, ..., 0].reshape(-1), x[:0], x[..., :0]):
            with unchecked(), pytest.raises(ValueError, match="shape"):
                case.functional.atoms(wrong)
        with unchecked(), pytest.raises(ValueError, match="shape"):
            case.functional.atoms(x[:, None])
