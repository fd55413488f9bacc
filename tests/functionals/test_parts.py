"""Rows of a part of a batch, which are moved by the draws that they have in the whole batch."""

import pytest
import torch
from torch import nn

from orbitwise.functionals import Difference, Evaluation, OrbitAverage
from orbitwise.functionals.averages import atoms_of_part, evenly_drawn, freeze_functional
from orbitwise.orbits import (
    ComposedOrbit,
    DeformationOrbit,
    FiniteOrbit,
    ImageOrbit,
    ModuleOrbit,
    SampledOrbit,
)
from orbitwise.orbits.nodes import Part
from orbitwise.transforms import Translation, block_permutations

WIDTH = 9


class Shift(nn.Module):
    def forward(self, x, noise):
        return x[:, None] + noise[..., :1]


class OwnDraws(nn.Module):
    def forward(self, x, count, generator):
        return x[:, None] + torch.rand(len(x), count, 1, generator=generator, dtype=x.dtype)


def shifts(**options):
    return SampledOrbit(Translation(WIDTH), -0.1, 0.2, num_samples=4, **options)


def images(**options):
    return ImageOrbit((3, 3), num_samples=4, **options)


CASES = {
    "random": (OrbitAverage(shifts()), True),
    "sobol": (OrbitAverage(shifts(draws="sobol")), True),
    "images": (evenly_drawn(OrbitAverage(images()), 8), True),
    "deformations": (OrbitAverage(DeformationOrbit((3, 3), num_samples=4, draws="sobol")), True),
    "composed": (OrbitAverage(ComposedOrbit(shifts(), images(), num_samples=4)), True),
    "noise": (OrbitAverage(ModuleOrbit(Shift(), num_noise=1, num_samples=4)), True),
    "a module that draws": (OrbitAverage(ModuleOrbit(OwnDraws(), num_samples=4)), False),
    "elements": (OrbitAverage(FiniteOrbit(block_permutations(3, 3), num_samples=2)), False),
    "a sum": (OrbitAverage(shifts()) - 0.5 * OrbitAverage(images()), True),
    "frozen": (freeze_functional(OrbitAverage(shifts()), 4, torch.Generator().manual_seed(0)), True),
    "nothing drawn": (Evaluation(), True),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_have_the_draws_of_the_whole_batch(name):
    functional = CASES[name][0].double()
    x = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    whole, after = functional.atoms(x, generator), generator.get_state()
    moved = []
    for first, count in ((0, 3), (3, 0), (3, 4)):
        generator.manual_seed(2)
        part = atoms_of_part(functional, x.__getitem__, Part(first, count, 7), generator)
        assert torch.equal(part.points, whole.points[first : first + count])
        assert torch.equal(part.weights, whole.weights[first : first + count])
        assert part.groups == whole.groups
        # the next batch is drawn alike by all processes
        assert torch.equal(generator.get_state(), after)
        moved.append(part)
    assert sum(part.num_rows for part in moved) == 7


@pytest.mark.parametrize("name", CASES)
def test_only_the_rows_of_the_part_are_moved_where_that_is_possible(name, monkeypatch):
    functional, moves_alone = CASES[name]
    seen = []
    given = type(functional).lower

    def lower(self, x, generator=None):
        seen.append(len(x))
        return given(self, x, generator)

    monkeypatch.setattr(type(functional), "lower", lower)
    x = torch.zeros(6, WIDTH, dtype=torch.float64)
    atoms_of_part(functional.double(), x.__getitem__, Part(2, 2, 6), torch.Generator().manual_seed(0))
    assert seen[0] == (2 if moves_alone else 6)


def test_pairs_of_rows_and_ranges_that_are_learned():
    functional = (Difference() @ OrbitAverage(shifts(draws="sobol"))).double()
    x = torch.randn(5, 2, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = functional.atoms(x, torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(2)
    part = atoms_of_part(functional, x.__getitem__, Part.of(slice(1, 3), 5), generator)
    assert torch.equal(part.points, whole.points[1:3])
    learned = [each for each in functional.parameters() if each.requires_grad]
    slopes = torch.autograd.grad(part.points.sum(), learned, allow_unused=True)
    expected = torch.autograd.grad(whole.points[1:3].sum(), learned, allow_unused=True)
    assert any(each is not None and bool(each.abs().sum() > 0) for each in slopes)
    pairs = [(mine, one) for mine, one in zip(slopes, expected, strict=True) if one is not None]
    assert all(torch.allclose(mine, one) for mine, one in pairs)
