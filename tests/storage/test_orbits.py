"""Transforms and orbits come back: the same points bit for bit, the same learned ranges, the same flags."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orbitwise.orbits import (
    ComposedOrbit,
    CropOrbit,
    DeformationOrbit,
    FiniteOrbit,
    FrozenOrbit,
    ImageOrbit,
    JitterOrbit,
    MirrorOrbit,
    Orbit,
    PatchOrbit,
    PointCloudOrbit,
    SampledOrbit,
    SignalOrbit,
    WeightedOrbit,
    closure,
)
from orbitwise.storage import StorageError
from orbitwise.storage.objects import Writer
from orbitwise.transforms import (
    AffineWarp,
    Intensity,
    LinearMaps,
    Rotation,
    Scaling,
    SignedPermutations,
    TangentDeformation,
    TimeShift,
    TimeWarp,
    Transform,
    Translation,
    coordinate_permutations,
    flips,
    negation,
    quarter_turns,
    sign_changes,
    turns,
)
from tests.storage.round_trip import again

SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def inputs(width: int) -> Tensor:
    return torch.rand(3, width, generator=seeded(), dtype=torch.float64)


ORBITS: dict[str, Callable[[], tuple[Orbit, int]]] = {
    "permutations": lambda: (FiniteOrbit(coordinate_permutations(3)), 3),
    "mirror": lambda: (MirrorOrbit([1.0, -2.0], (2, 0), is_odd=True), 3),
    "fixed mirror": lambda: (MirrorOrbit(0.5, learnable=False), 2),
    "subsampled": lambda: (FiniteOrbit(coordinate_permutations(3), num_samples=4), 3),
    "odd": lambda: (FiniteOrbit(negation(4), weights=SIGNS), 4),
    "group": lambda: (closure(flips((4, 4)), quarter_turns((4, 4))), 16),
    "turns": lambda: (FiniteOrbit(turns(5)), 2),
    "listed": lambda: (FiniteOrbit(Rotation(2), torch.tensor([[0.0], [0.3]], dtype=torch.float64)), 2),
    "affine": lambda: (ImageOrbit((4, 4)), 16),
    "two-sided": lambda: (ImageOrbit((4, 5), {"angle": (-0.1, 0.5)}, two_sided=["angle"]), 20),
    "whole turn": lambda: (ImageOrbit((4, 4), {"angle": torch.pi}), 16),
    "held": lambda: (ImageOrbit((2, 4, 4), {"angle": 0.3, "shear": 0.2}, 0.5, 2.0, learnable=["angle"]), 32),
    "deformed": lambda: (ImageOrbit((4, 4), {}, 0.5, 2.0), 16),
    "tangents": lambda: (DeformationOrbit((4, 4), 0.4, 2.0, 0.3, 0.8, clip=(0.0, 1.0)), 16),
    "thickness": lambda: (DeformationOrbit((4, 4), 0.0, thickness=(-0.1, 0.4), two_sided=["thickness"]), 16),
    "signal": lambda: (SignalOrbit(8, shift=1.0, log_scale=(0.1, 0.3), warp=0.4, jitter=0.1), 8),
    "delay": lambda: (SignalOrbit((2, 6), warp=0.4, boundary="wrap", draws="sobol"), 12),
    "held delay": lambda: (SignalOrbit(8, shift=(0.7, 0.7), learnable=[]), 8),
    "jitter": lambda: (JitterOrbit(3, 0.2, separate=True), 3),
    "one jitter": lambda: (JitterOrbit(1, 0.2, learnable=False, num_samples=6, num_groups=3), 1),
    "cloud": lambda: (PointCloudOrbit(2, 3, angle=0.4, shift=0.1, jitter=0.05), 6),
    "flat cloud": lambda: (PointCloudOrbit(2, 2, shift=(0.1, 0.4), two_sided=["shift_x"]), 4),
    "crop": lambda: (CropOrbit((4, 4), 0.3, 0.2), 16),
    "padded": lambda: (CropOrbit((4, 4), 0.0, 0.2), 16),
    "patches": lambda: (PatchOrbit((4, 5), (2, 3), 2), 20),
    "weighted": lambda: (WeightedOrbit(PatchOrbit((4, 4), (2, 2)), "free"), 16),
    "sampled": lambda: (SampledOrbit(Rotation(3), -0.2, [0.1, 0.2, 0.3], "normal"), 6),
    "warped": lambda: (SampledOrbit(AffineWarp((4, 4)), [0.0] * 6, [0.5, 0.0, 0.0, 0.1, 0.0, 0.0]), 16),
    "composed": lambda: (ComposedOrbit(FiniteOrbit(negation(2)), SampledOrbit(Rotation(2), -1.0, 1.0)), 2),
    "frozen": lambda: (ImageOrbit((4, 4), None, 0.5).freeze(5, seeded(), "sobol"), 16),
    "quadrature": lambda: (SampledOrbit(Rotation(2), -1.0, 1.0).freeze(3, rule="gauss"), 2),
    "weighted nodes": lambda: (WeightedOrbit(SampledOrbit(Rotation(2), -1.0, 1.0).freeze(3, seeded())), 2),
}  # fmt: skip


def made(name: str) -> tuple[Orbit, int]:
    """The orbit with ranges as they might have been learned."""
    orbit, width = ORBITS[name]()
    with torch.no_grad():
        for parameter in orbit.double().parameters():
            parameter += 0.37 if parameter.requires_grad else 0.0
    return orbit, width


@pytest.mark.parametrize("name", ORBITS)
def test_orbits_come_back(name: str):
    orbit, width = made(name)
    back = again(orbit)
    assert type(back) is type(orbit)
    first, second = (each.points(inputs(width), seeded()) for each in (orbit, back))
    assert torch.equal(first.points, second.points)
    assert torch.equal(first.weights, second.weights)
    assert first.weights.stride() == second.weights.stride()
    assert first.groups == second.groups
    assert (first.symmetry is None) == (second.symmetry is None)
    assert orbit.learned() == back.learned()
    assert (orbit.describe(), repr(orbit)) == (back.describe(), repr(back))
    assert orbit.state_dict().keys() == back.state_dict().keys()
    flags = [[parameter.requires_grad for parameter in each.parameters()] for each in (orbit, back)]
    assert flags[0] == flags[1]


@pytest.mark.parametrize("name", ["affine", "held", "tangents", "delay", "cloud", "crop", "composed"])
def test_orbits_that_came_back_can_be_frozen(name: str):
    orbit, width = made(name)
    first, second = (each.freeze(4, seeded(), "sobol") for each in (orbit, again(orbit)))
    assert torch.equal(first.points(inputs(width)).points, second.points(inputs(width)).points)


@pytest.mark.parametrize(
    ("transform", "width"),
    [
        (AffineWarp((2, 3)), 6),
        (Intensity(), 4),
        (Rotation(3), 6),
        (Scaling(), 3),
        (Scaling(2), 4),
        (TangentDeformation((2, 2), 0.7, (-1.0, 2.0)), 4),
        (TimeShift((2, 3), "wrap"), 6),
        (TimeWarp(5), 5),
        (Translation(2), 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_continuous_transforms_come_back(transform: Transform, width: int):
    back = again(transform)
    alpha = torch.rand(3, 2, transform.num_parameters, generator=seeded(), dtype=torch.float64)
    assert torch.equal(transform(inputs(width), alpha), back(inputs(width), alpha))
    assert torch.equal(transform.tangent(inputs(width)), back.tangent(inputs(width)))


@pytest.mark.parametrize(
    "transform",
    [sign_changes(3), LinearMaps(torch.eye(3)[None]), SignedPermutations(torch.tensor([[0, 1, 2]]))],
)
def test_discrete_transforms_come_back(transform: Transform):
    back = again(transform)
    assert torch.equal(transform.all_elements(inputs(3)), back.all_elements(inputs(3)))
    assert (transform.is_group, transform.isometric, transform.size) == (
        back.is_group,
        back.isometric,
        back.size,
    )


def test_a_composition_of_compositions_is_refused():
    composed = ComposedOrbit(JitterOrbit(2))
    composed.stages = nn.ModuleList([ComposedOrbit(JitterOrbit(2), JitterOrbit(2))])
    with pytest.raises(StorageError, match="stages that it would not keep"):
        again(composed)


def test_a_finite_orbit_keeps_the_shape_of_its_images():
    orbit = FiniteOrbit(flips((1, 2, 3)))
    writer = Writer()
    writer.value(orbit, "orbit")
    # as in files of earlier versions
    assert writer.objects[-1]["attributes"] == {}
    assert again(orbit).image_shape is None
    orbit.image_shape = (1, 2, 3)
    assert again(orbit).image_shape == (1, 2, 3)
    for wrong in ((2, 3), (1, 3, 3)):
        orbit.image_shape = wrong  # pyright: ignore
        with pytest.raises(StorageError, match="no FiniteOrbit can be built"):
            again(orbit)


def test_nodes_of_another_width_are_refused():
    with pytest.raises(ValueError, match="Nodes have 5 entries, but the noise has 3"):
        FrozenOrbit(JitterOrbit(3), torch.zeros(2, 5))
    frozen = FrozenOrbit(JitterOrbit(3), torch.zeros(2, 3))
    frozen.nodes = torch.zeros(2, 5)
    with pytest.raises(StorageError, match="Nodes have 5 entries, but the noise has 3"):
        again(frozen)
