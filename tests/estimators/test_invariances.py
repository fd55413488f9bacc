"""Names of invariances: each stands for its group, and wrong ones are met with help."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import orbitwise
from orbitwise.estimators.invariances import (
    ESTIMATORS,
    NAMES,
    SEARCHED,
    Inputs,
    find,
    functional_of,
    is_of_images,
    name_of,
    names_for,
    orbit_of,
    penalty_of,
)
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.estimators.virtual import VirtualSVC
from orbitwise.functionals import DirectionalDerivative, Evaluation, OrbitAverage
from orbitwise.functionals.tangents import smoothed_images
from orbitwise.orbits import FiniteOrbit, OrderOrbit, SampledOrbit
from orbitwise.orbits.orbit import image_widths
from orbitwise.transforms import AffineWarp, Translation, cyclic_shifts

# name, one row, how many points its orbit has, one of them
ORBITS = [
    ("permutation", [1.0, 2.0, 3.0], 6, [3.0, 1.0, 2.0]),
    ("cyclic", [1.0, 2.0, 3.0], 3, [3.0, 1.0, 2.0]),
    ("sign", [1.0, 2.0, 3.0], 8, [1.0, -2.0, 3.0]),
    ("negation", [1.0, 2.0, 3.0], 2, [-1.0, -2.0, -3.0]),
    ("flip", [1.0, 2.0, 3.0, 4.0], 2, [2.0, 1.0, 4.0, 3.0]),
    ("quarter_turn", [1.0, 2.0, 3.0, 4.0], 4, [2.0, 4.0, 1.0, 3.0]),
    ("flip+quarter_turn", [1.0, 2.0, 3.0, 4.0], 8, [1.0, 3.0, 2.0, 4.0]),
]


@pytest.mark.parametrize(
    ("name", "row", "size", "member"), ORBITS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_name_averages_over_its_group(name, row, size, member):
    functional = functional_of(name, len(row), (2, 2) if is_of_images(name) else None)
    atoms = functional.atoms(torch.tensor([row]))
    points = {tuple(point) for point in atoms.points[0].tolist()}
    assert len(points) == atoms.num_atoms == size
    assert tuple(member) in points
    torch.testing.assert_close(atoms.weights, torch.full((1, size), 1 / size))
    assert atoms.symmetry is not None, "a group, so one side of the double sum suffices"


FINITE = {name for name, *_ in ORBITS}
OF_IMAGES = [name for name in names_for("average") if is_of_images(name)]
DRAWN = sorted(set(OF_IMAGES) - FINITE)


def test_every_name_of_columns_is_tested_here():
    assert {name for name in names_for("average") if NAMES[name].family in ("table", None)} <= FINITE


@pytest.mark.parametrize("name", DRAWN)
def test_other_names_of_images_are_drawn_near_the_identity_with_bounds_to_learn(name):
    functional = functional_of(name, 64, (8, 8))
    assert any(parameter.requires_grad for parameter in functional.parameters())
    image = torch.zeros(1, 8, 8)
    image[:, 2:6, 3:5] = 1
    atoms = functional.atoms(image.reshape(1, 64), torch.Generator().manual_seed(0))
    assert atoms.is_drawn
    distance = (atoms.points - image.reshape(1, 1, 64)).norm(dim=-1) / image.norm()
    assert 0 < distance.max() < 1.2


def test_nothing_is_evaluation():
    assert functional_of(None, 3).is_identity
    assert functional_of("none", 3).is_identity
    assert [name_of(each) for each in (None, "none", "sign", FiniteOrbit(cyclic_shifts(3)))] == [
        "none",
        "none",
        "sign",
        "FiniteOrbit",
    ]


def test_an_orbit_is_averaged_and_a_functional_is_taken_as_it_is():
    orbit = FiniteOrbit(cyclic_shifts(3))
    average = functional_of(orbit, 3)
    assert isinstance(average, OrbitAverage)
    assert average.orbit is orbit
    assert isinstance(functional_of(SampledOrbit(Translation(3), -1.0, 1.0), 3), OrbitAverage)
    functional = DirectionalDerivative(torch.ones(3)) + Evaluation()
    assert functional_of(functional, 3) is functional


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("permutations", "permutation"), ("signs", "sign"), ("quarter_turns", "quarter_turn")],
)
def test_a_wrong_name_is_met_with_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match=rf"Unknown invariance '{wrong}'.*cyclic.*Did you mean '{meant}'\?"):
        functional_of(wrong, 3)


def test_a_name_like_no_other_is_met_with_all_names():
    with pytest.raises(ValueError, match="known names are") as caught:
        functional_of("xyz", 3)
    assert "mean" not in str(caught.value)
    assert all(name in str(caught.value) for name, *_ in ORBITS)


@pytest.mark.parametrize("name", sorted(OF_IMAGES))
def test_names_of_images_need_the_shape_of_an_image(name):
    with pytest.raises(ValueError, match=r"image_shape=\(height, width\)"):
        functional_of(name, 4)


def test_orders_too_many_to_list_are_drawn(tmp_path):
    assert isinstance(orbit_of("permutation", Inputs(7)), FiniteOrbit)
    assert isinstance(orbit_of("permutation", Inputs(8)), OrderOrbit)
    x = np.random.default_rng(0).normal(size=(12, 20, 3))
    model = InvariantGPRegressor(invariance="cloud:permutation", max_iterations=0, num_nodes=4).fit(
        x, x.max((1, 2))
    )
    assert isinstance(model.orbit_, OrderOrbit)
    orbitwise.save(model, tmp_path / "model.orbitwise")
    np.testing.assert_array_equal(orbitwise.load(tmp_path / "model.orbitwise").predict(x), model.predict(x))


def test_exchanges_of_neighbours_stand_for_orders_too_many_to_list():
    rows = torch.rand(2, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = penalty_of("cloud:permutation", rows, 1.0, (8, 3))
    assert found is not None
    assert found.block.num_rows == 2 * 7
    moved = found.block.points[0, 0].reshape(8, 3)
    known = rows[0].reshape(8, 3)
    assert torch.equal(moved, known[[1, 0, 2, 3, 4, 5, 6, 7]])


@pytest.mark.parametrize("wrong", [3, OrbitAverage, ["permutation"]])
def test_other_kinds_are_refused(wrong):
    with pytest.raises(TypeError, match="invariance must be None, a name, an orbit or a functional"):
        functional_of(wrong, 3)


IMAGES = torch.rand(3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_every_name_has_a_use_and_the_search_has_all_of_its_own():
    assert [name for name, each in NAMES.items() if not each.uses] == ["none"]
    assert sorted(SEARCHED) == names_for("search")
    assert set(ESTIMATORS) == {use for each in NAMES.values() for use in each.uses}


@pytest.mark.parametrize(
    ("name", "use", "says"),
    [
        ("tangent", "average", "InvariantSVC or InvariantKernelRidge"),
        ("gradient", "copy", "InvariantSVC or InvariantKernelRidge"),
        ("deformation", "penalise", "InvariantGPClassifier.*VirtualSVC"),
        ("moves", "average", "InvariantSVC.*VirtualSVC"),
        ("mirror", "average", "AutoGPRegressor"),
        ("affine", "search", "InvariantGPRegressor"),
    ],
)
def test_a_name_of_another_use_says_which_estimator_takes_it(name, use, says):
    with pytest.raises(ValueError, match=says):
        find(name, use)


def test_an_affine_penalty_is_the_change_by_a_small_move():
    """f linear on smooth images: w ∂f = f(moved by a small share of w) - f, over that share."""
    shape = (12, 12)
    grid = torch.arange(12, dtype=torch.float64) - 5.5
    image = torch.exp(-((grid[:, None] - 1) ** 2 + (grid - 0.5) ** 2) / 8).reshape(1, 144)
    for name, parameter in [("rotation", "angle"), ("shear", "shear")]:
        found = penalty_of(name, image, 1.0, shape)
        assert found is not None
        smooth = smoothed_images(image, shape, 1.0)
        warp, share = AffineWarp(shape), 0.05
        alpha = torch.zeros(1, 2, 6, dtype=torch.float64)
        width = image_widths(shape)[parameter]
        alpha[0, :, warp.parameter_names.index(parameter)] = torch.tensor([1.0, -1.0]) * share * width
        ahead, behind = warp(smooth, alpha)[0]
        expected = (ahead - behind) / (2 * share)
        torch.testing.assert_close(found.block.directions[0, 0, 0], expected, rtol=0, atol=2e-3)
        assert expected.abs().max() > 0.02


@pytest.mark.parametrize(("name", "elements"), [("flip", 1), ("quarter_turn", 3), ("negation", 1)])
def test_a_penalty_of_a_group_is_all_its_differences(name, elements):
    found = penalty_of(name, IMAGES, 1.0, (4, 4) if is_of_images(name) else None)
    assert found is not None
    assert found.block.num_rows == 3 * elements
    assert found.block.weights.sum(-1).abs().max() == 0
    assert penalty_of("negation", torch.zeros(1, 2), 1.0) is None


def test_a_finite_orbit_is_penalised_like_its_name_and_others_say_where_to_go():
    named = penalty_of("cyclic", IMAGES, 1.0)
    given = penalty_of(FiniteOrbit(cyclic_shifts(16)), IMAGES, 1.0)
    assert named is not None
    assert given is not None
    torch.testing.assert_close(given.block.points, named.block.points, rtol=0, atol=0)
    with pytest.raises(ValueError, match="num_samples or weights use InvariantGPRegressor"):
        penalty_of(FiniteOrbit(cyclic_shifts(16), num_samples=4), IMAGES, 1.0)
    with pytest.raises(TypeError, match=r"InvariantGPClassifier .*VirtualSVC.*invariance='affine'"):
        penalty_of(SampledOrbit(Translation(16), -1.0, 1.0), IMAGES, 1.0)


def test_every_estimator_that_a_message_names_is_there():
    named = {name for text in ESTIMATORS.values() for name in re.findall(r"[A-Z]\w+", text)}
    assert named == {name for name in orbitwise.__all__ if name in named}
    # which take no names of invariances
    others = {"DecimalYears", "LaplacianSVC", "MoleculeGP", "predict_in_blocks"}
    assert named == set(orbitwise.estimators.__all__) - others | {"AutoGPRegressor"}


def test_signals_and_clouds_have_names():
    rows = IMAGES[:, :12]
    for shape in (None, (3, 4)):
        assert orbit_of("signal:shift+warp", Inputs(12, shape)).signal_shape == (shape or (1, 12))
    cloud = orbit_of("cloud:rotation", Inputs(12, (4, 3)))
    assert (cloud.num_points, cloud.num_dimensions) == (4, 3)
    assert orbit_of("cloud:permutation", Inputs(12, (4, 3))).size == 24
    with pytest.raises(ValueError, match=r"pass X as \[n_samples, num_points, num_dimensions\]"):
        orbit_of("cloud:rotation", Inputs(12))
    found = penalty_of("cloud:rotation", rows, 1.0, (4, 3))
    assert found is not None
    assert found.block.num_rows == 3 * 3
    # a turn leaves every distance from the origin as it is, to first order
    turned = found.block.directions[:, 0].unflatten(-1, (4, 3))
    assert (turned * rows.reshape(3, 1, 4, 3)).sum(-1).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["signal:shift", "signal:scale", "cloud:rotation", "cloud:permutation"])
def test_estimators_take_signals_and_clouds_with_their_dimensions(name, tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 4, 3))
    y = x[:, :, 0].sum(1)
    model = InvariantGPRegressor(invariance=name, max_iterations=0, num_nodes=4, max_nodes=4).fit(x, y)
    assert model.predict(x[:2]).shape == (2,)
    np.testing.assert_allclose(model.predict(x[:2]), model.predict(x[:2].reshape(2, -1)))
    machine = InvariantSVC(invariance=name).fit(x, y > 0)
    assert machine.predict(x[:2]).shape == (2,)
    copies = VirtualSVC(invariance=name, random_state=0).fit(x, y > 0)
    for each in (model, machine, copies):
        orbitwise.save(each, tmp_path / "model.orbitwise")
        back = orbitwise.load(tmp_path / "model.orbitwise")
        np.testing.assert_array_equal(back.predict(x[:2]), each.predict(x[:2]))
    with pytest.raises(ValueError, match="shape"):
        machine.predict(x[:2].transpose(0, 2, 1))


def test_the_documented_table_has_every_name_and_its_uses():
    text = (Path(__file__).parents[2] / "docs" / "invariances.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith('| `"')]
    table = {cells[1].strip(' `"'): cells[2:] for cells in (line.split("|") for line in lines)}
    assert list(table) == list(NAMES)
    for name, each in NAMES.items():
        family, meaning, *uses = (cell.strip() for cell in table[name][:6])
        assert (family, meaning) == (each.family or "any", each.meaning)
        expected = ["yes" if use in each.uses else "" for use in ("average", "penalise", "copy", "search")]
        assert uses == expected
