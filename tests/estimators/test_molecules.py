"""MoleculeGP on small molecules whose energy is known: symmetries, forces, oracles, forms of data."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from orbitwise import MoleculeGP, load, save
from orbitwise.functionals import Gradient
from orbitwise.storage import describe

CORNERS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
MOLECULES = {
    "water": ([8, 1, 1], np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]), 2),
    "ammonia": (
        [7, 1, 1, 1],
        np.array([[0.0, 0, 0.3], [0.94, 0, 0], [-0.47, 0.81, 0], [-0.47, -0.81, 0]]),
        6,
    ),
    "methane": ([6, 1, 1, 1, 1], np.concatenate([np.zeros((1, 3)), 1.09 * CORNERS]), 24),
    "nitrogen": ([7, 7], np.array([[0.0, 0, 0], [1.1, 0, 0]]), 2),
    "hypochlorous acid": ([8, 1, 17], np.array([[0.0, 0, 0], [0.97, 0, 0], [-0.4, 1.64, 0]]), 1),
}


def energies_and_forces(z: list[int], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curved function of the distance of every pair, the same for pairs of like atoms."""
    place = torch.from_numpy(x).requires_grad_(True)
    first, second = torch.triu_indices(len(z), len(z), 1)
    lengths = (place[:, first] - place[:, second]).norm(dim=-1)
    strength = torch.tensor([30.0 + 5 * ((z[a] * z[b]) ** 0.5) for a, b in zip(first, second, strict=True)])
    rest = torch.tensor([0.9 + 0.05 * abs(z[a] - z[b]) for a, b in zip(first, second, strict=True)])
    energy = (strength * (1 - torch.exp(-(lengths - rest))) ** 2).sum(1) + 0.5 * lengths.prod(1)
    (slope,) = torch.autograd.grad(energy.sum(), place)
    return energy.detach().numpy() - 40_000, -slope.numpy()


def data(name: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Geometries about the molecule, turned and moved anyhow, with energies and forces."""
    z, molecule, _ = MOLECULES[name]
    random = np.random.default_rng(seed)
    x = molecule + 0.06 * random.normal(size=(count, *molecule.shape))
    turns = np.linalg.qr(random.normal(size=(count, 3, 3)))[0]
    x = x @ turns + random.normal(size=(count, 1, 3))
    return x, *energies_and_forces(z, x)


def fitted(name: str, count: int = 12, **settings: Any) -> MoleculeGP:
    x, energies, forces = data(name, count)
    return MoleculeGP(MOLECULES[name][0], **settings).fit(x, energies, forces)


@pytest.fixture(scope="module")
def ammonia() -> MoleculeGP:
    """From forces with a little noise: without it, rounding is seen in the last digits of predictions."""
    x, energies, forces = data("ammonia", 8)
    noise = 0.01 * np.random.default_rng(1).normal(size=forces.shape)
    return MoleculeGP([7, 1, 1, 1]).fit(x, energies, forces + noise)


@pytest.mark.parametrize("name", MOLECULES)
def test_it_learns_every_molecule_without_a_setting(name: str):
    z, _, size = MOLECULES[name]
    x, energies, forces = data(name, 60)
    model = MoleculeGP(z).fit(x[:8], energies[:8], forces[:8])
    assert model.converged_
    assert model.exchanges_.shape == (size, len(z))
    assert np.abs(model.predict_forces(x[8:]) - forces[8:]).mean() < 0.1 * np.abs(forces).mean()
    assert np.abs(model.predict(x[8:]) - energies[8:]).mean() < 0.1 * energies.std()
    assert model.score(x[8:], energies[8:]) > 0.95
    assert (model.evidence_kind_, model.log_evidence_error_) == ("exact", 0.0)


def test_forces_are_minus_the_slopes_of_energies(ammonia: MoleculeGP):
    x, step = data("ammonia", 3, seed=1)[0], 2e-3
    moves = step * np.eye(12).reshape(12, 4, 3)
    up, down = (ammonia.predict((x[:, None] + sign * moves).reshape(-1, 4, 3)) for sign in (1, -1))
    slopes = (up - down).reshape(x.shape) / (2 * step)
    forces = ammonia.predict_forces(x)
    np.testing.assert_allclose(forces, -slopes, rtol=0, atol=2e-5 * np.abs(forces).max())


def test_nothing_changes_where_the_molecule_is_moved_turned_reflected_or_exchanged(ammonia: MoleculeGP):
    x = data("ammonia", 5, seed=1)[0]
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    energies, forces = ammonia.predict(x), ammonia.predict_forces(x)
    for each in (turn, -turn):
        moved = x @ each + [1.0, -2.0, 3.0]
        np.testing.assert_allclose(ammonia.predict(moved), energies, rtol=1e-10, atol=0)
        np.testing.assert_allclose(ammonia.predict_forces(moved), forces @ each, rtol=0, atol=1e-5)
    for order in ammonia.exchanges_:
        np.testing.assert_allclose(ammonia.predict(x[:, order]), energies, rtol=1e-10, atol=0)
        np.testing.assert_allclose(ammonia.predict_forces(x[:, order]), forces[:, order], rtol=0, atol=1e-5)
    # predicted forces neither push nor turn the molecule as a whole
    np.testing.assert_allclose(forces.sum(1), 0, atol=1e-5)
    np.testing.assert_allclose(np.cross(x, forces).sum(1), 0, atol=1e-5)


def test_the_quick_way_to_forces_agrees_with_the_general_one(ammonia: MoleculeGP):
    x = data("ammonia", 7, seed=3)[0]
    forces = ammonia.predict_forces(x)
    general = -ammonia.predict_functional(Gradient(), x.reshape(7, -1)).reshape(x.shape)
    np.testing.assert_allclose(forces, general, rtol=0, atol=1e-7 * np.abs(forces).max())
    again, deviation = ammonia.predict_forces(x, return_std=True)
    np.testing.assert_allclose(again, forces, rtol=0, atol=1e-7 * np.abs(forces).max())
    assert deviation.shape == x.shape
    assert (deviation > 0).all()
    # a kernel that changes where distances are exchanged takes both sums of the average
    uneven = RBFKernel(ard_num_dims=6)
    x, energies, forces = data("ammonia", 6)
    model = MoleculeGP([7, 1, 1, 1], kernel=uneven, max_iterations=0).fit(x, energies, forces)
    model.kernel_.base_kernel.lengthscale = torch.linspace(0.5, 2.0, 6)
    general = -model.predict_functional(Gradient(), x).reshape(x.shape)
    np.testing.assert_allclose(model.predict_forces(x), general, rtol=0, atol=1e-7 * np.abs(general).max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_against_a_slow_loop_over_exchanges():
    """The posterior mean by a dense covariance whose slopes are those of automatic differentiation."""
    x, energies, forces = data("water", 4)
    model = MoleculeGP([8, 1, 1], kernel=RBFKernel(), max_iterations=3).fit(x, energies, forces)
    weights = torch.from_numpy(model.distance_weights_)
    scale, orders = float(model.kernel_.outputscale.detach()), model.exchanges_.tolist()

    def features(point: torch.Tensor) -> torch.Tensor:
        atoms = point.reshape(3, 3)
        pairs = [(0, 1), (0, 2), (1, 2)]
        return torch.stack([weights[a, b] / (atoms[a] - atoms[b]).norm() for a, b in pairs])

    def covariance(point: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for order in orders:
            moved = point.reshape(3, 3)[order].flatten()
            total = total + torch.exp(-0.5 * (features(moved) - features(other)).square().sum())
        return scale * total / len(orders)

    points = torch.from_numpy(x.reshape(4, 9))
    new = torch.from_numpy(data("water", 2, seed=5)[0].reshape(2, 9))
    by_right = torch.func.grad(covariance, 1)
    by_left = torch.func.grad(covariance, 0)
    both = torch.func.jacfwd(by_right, 0)

    def joint(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Energy and slopes at one geometry with those at another."""
        top = torch.cat([covariance(a, b)[None], by_right(a, b)])
        return torch.cat([top[None], torch.cat([by_left(a, b)[:, None], both(a, b).T], 1)])

    gram = torch.cat([torch.cat([joint(a, b) for b in points], 1) for a in points])
    cross = torch.cat([torch.cat([joint(a, b) for b in points], 1) for a in new])
    unit = float(model.target_scale_.scale)
    noise = torch.tensor([model.noise_, *[model.force_noise_] * 9] * 4, dtype=torch.float64) / unit**2
    targets = np.concatenate([(energies - energies.mean())[:, None], -forces.reshape(4, 9)], 1).ravel() / unit
    mean = unit * cross @ torch.linalg.solve(gram + torch.diag(noise), torch.from_numpy(targets))
    mean = mean.reshape(2, 10).numpy()
    found = new.reshape(2, 3, 3).numpy()
    size = np.abs(mean[:, 1:]).max()
    np.testing.assert_allclose(model.predict(found) - energies.mean(), mean[:, 0], rtol=0, atol=1e-5 * size)
    np.testing.assert_allclose(model.predict_forces(found).reshape(2, 9), -mean[:, 1:], atol=1e-5 * size)


def test_exchanges_teach_and_may_be_given_or_left_out():
    x, energies, forces = data("methane", 40)
    train, test = slice(0, 5), slice(5, None)

    def error(exchanges: Any) -> float:
        model = MoleculeGP([6, 1, 1, 1, 1], exchanges).fit(x[train], energies[train], forces[train])
        return float(np.abs(model.predict_forces(x[test]) - forces[test]).mean())

    # two turns generate the twelve turns of a tetrahedron
    turns = [[0, 2, 3, 1, 4], [0, 1, 3, 4, 2]]
    found = MoleculeGP([6, 1, 1, 1, 1], turns, max_iterations=0).fit(x[train], energies[train])
    assert len(found.exchanges_) == 12
    assert error("auto") < 0.5 * error(None)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_energies_or_forces_alone_suffice():
    x, energies, forces = data("water", 60)
    only_forces = MoleculeGP([8, 1, 1]).fit(x[:12], forces=forces[:12])
    found = only_forces.predict(x)
    np.testing.assert_allclose(found[0], 0, atol=1e-3 * energies.std())
    assert np.abs(found - (energies - energies[0])).mean() < 0.1 * energies.std()
    assert only_forces.force_noise_ > 0
    only_energies = MoleculeGP([8, 1, 1]).fit(x[:40], energies[:40])
    assert only_energies.score(x[40:], energies[40:]) > 0.95
    assert not hasattr(only_energies, "force_noise_")
    assert only_energies.predict_forces(x[:2]).shape == (2, 3, 3)


def test_error_bars_hold_what_comes():
    x, energies, forces = data("ammonia", 60)
    random = np.random.default_rng(0)
    noisy_energies = energies + 0.3 * random.normal(size=60)
    noisy = forces + 1.0 * random.normal(size=forces.shape)
    model = MoleculeGP([7, 1, 1, 1]).fit(x[:15], noisy_energies[:15], noisy[:15])
    assert 0.6 < model.force_noise_ < 2.0
    mean, deviation = model.predict(x[15:], return_std=True)
    assert np.mean(np.abs(mean - noisy_energies[15:]) < 1.96 * deviation) > 0.5
    mean, deviation = model.predict_forces(x[15:], return_std=True)
    assert np.mean(np.abs(mean - forces[15:]) < 2.5 * deviation) > 0.9


@pytest.mark.parametrize(("length", "energy"), [(1.89, 1 / 627.5), (0.1, 4.184)])
def test_units_do_not_matter(length: float, energy: float):
    x, energies, forces = data("water", 20)
    one = fitted("water", 10)
    other = MoleculeGP([8, 1, 1]).fit(length * x[:10], energy * energies[:10], energy / length * forces[:10])
    atol = 1e-2 * np.abs(forces).mean()
    expected = one.predict_forces(x[10:])
    np.testing.assert_allclose(other.predict_forces(length * x[10:]) * length / energy, expected, atol=atol)
    np.testing.assert_allclose(other.predict(length * x[10:]) / energy, one.predict(x[10:]), atol=atol)


def test_single_precision_lists_and_rows_are_taken():
    x, energies, forces = data("water", 10)
    model = fitted("water", 10)
    rows = MoleculeGP(np.array([8, 1, 1], dtype=np.uint8)).fit(
        x.reshape(10, 9), energies[:, None], forces.reshape(10, 9)
    )
    np.testing.assert_array_equal(rows.predict(x), model.predict(x))
    np.testing.assert_array_equal(rows.predict(x.tolist()), model.predict(x))
    assert model.predict(torch.from_numpy(x[:4])).shape == (4,)
    single = MoleculeGP([8, 1, 1], max_iterations=5)
    with pytest.warns(match="max_iterations"):
        single.fit(*(part.astype(np.float32) for part in (x, energies - energies[0], forces)))
    assert np.abs(single.predict_forces(x.astype(np.float32)) - forces).mean() < 0.1 * np.abs(forces).mean()


def test_what_it_tells(ammonia: MoleculeGP):
    weights = ammonia.distance_weights_
    assert weights.shape == (4, 4)
    assert (weights == weights.T).all()
    assert (weights.diagonal() == 0).all()
    # two kinds of pairs: of nitrogen with hydrogen, and of two hydrogen atoms
    assert len(np.unique(weights)) == 3
    assert ammonia.n_features_in_ == 12
    assert ammonia.history_[-1] >= ammonia.history_[0]
    assert ammonia.kernel_.base_kernel.has_lengthscale
    assert ammonia.sample_y(data("ammonia", 2)[0], n_samples=3).shape == (2, 3)


@pytest.mark.parametrize("kernel", [MaternKernel(nu=2.5), ScaleKernel(RBFKernel())])
def test_other_kernels(kernel: Any):
    before = {name: part.clone() for name, part in kernel.state_dict().items()}
    model = fitted("water", kernel=kernel)
    x, _, forces = data("water", 20, seed=4)
    assert np.abs(model.predict_forces(x) - forces).mean() < 0.1 * np.abs(forces).mean()
    assert all(torch.equal(kernel.state_dict()[name], part) for name, part in before.items())


def test_it_comes_back_from_a_file_and_from_pickle(ammonia: MoleculeGP, tmp_path):
    x = data("ammonia", 4, seed=1)[0]
    save(ammonia, tmp_path / "ammonia.orbitwise")
    told = describe(tmp_path / "ammonia.orbitwise")
    assert (told["estimator"], told["inference"], told["n_features"]) == ("MoleculeGP", "exact", 12)
    for again in (load(tmp_path / "ammonia.orbitwise"), pickle.loads(pickle.dumps(ammonia))):
        assert again.predict(x).tobytes() == ammonia.predict(x).tobytes()
        assert again.predict_forces(x).tobytes() == ammonia.predict_forces(x).tobytes()
        (_, one), (_, other) = (each.predict(x, return_std=True) for each in (again, ammonia))
        assert one.tobytes() == other.tobytes()
        np.testing.assert_array_equal(again.exchanges_, ammonia.exchanges_)
        assert again.force_noise_ == ammonia.force_noise_
        assert again.log_evidence_ == ammonia.log_evidence_


def test_settings_follow_scikit_learn():
    model = MoleculeGP([8, 1, 1], None, num_learn=5, max_iterations=3)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert again.set_params(num_learn=7).num_learn == 7
    assert "num_learn=5" in repr(model)
    with pytest.raises(NotFittedError):
        model.predict(np.zeros((1, 3, 3)))
    x, energies, forces = data("water", 8)
    with pytest.warns(match="max_iterations"):
        assert model.fit(x, energies, forces) is model
    assert model.exchanges_.tolist() == [[0, 1, 2]]


def test_learning_ends_where_it_is_told_to():
    x, energies, forces = data("water", 8)

    def interrupt(step: int, value: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    model = MoleculeGP([8, 1, 1], callback=interrupt)
    with pytest.warns(match="interrupted"):
        model.fit(x, energies, forces)
    assert model.stopped_by_ == "interrupted"
    assert len(model.history_) == 2
    assert np.isfinite(model.predict(x)).all()


X, ENERGIES, FORCES = data("water", 5)
SAME_PLACE = np.array(X)
SAME_PLACE[3, 2] = SAME_PLACE[3, 0]
MISSING = np.array(X)
MISSING[1, 1, 1] = np.nan


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        (
            {"z": [8, 1]},
            (X, ENERGIES, FORCES),
            "shape [geometries, 2, 3], for the 2 atoms of z, not (5, 3, 3)",
        ),
        ({"z": [8]}, (X[:, :1], ENERGIES), "at least two atoms"),
        ({"z": [8.5, 1, 1]}, (X, ENERGIES), "whole numbers from 1 to 118"),
        ({"z": ["O", "H", "H"]}, (X, ENERGIES), "such as [8, 1, 1] for water"),
        ({}, (X[0], ENERGIES[:1]), "One geometry is x[None]"),
        ({}, (X[:1], ENERGIES[:1]), "at least 2 geometries"),
        ({}, (X,), "energies, forces or both"),
        ({}, (X, ENERGIES[:4]), "the energies of 5 geometries, not shape (4,)"),
        ({}, (X, ENERGIES, FORCES[:, :2]), "forces must have the shape of X, (5, 3, 3), not (5, 2, 3)"),
        ({}, (MISSING, ENERGIES), "NaN"),
        ({}, (X, ENERGIES, MISSING), "NaN"),
        ({}, (SAME_PLACE, ENERGIES), "Atoms 0 and 2 are at the same place in X[3]"),
        ({"exchanges": [[0, 1, 1]]}, (X, ENERGIES), "each hold 0, …, 2 once"),
        ({"exchanges": [[1, 0, 2]]}, (X, ENERGIES), "their atomic numbers are 1 and 8"),
        ({"exchanges": "all"}, (X, ENERGIES), "exchanges must be 'auto'"),
        ({"num_learn": 0}, (X, ENERGIES), "num_learn must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_learned_from_is_said(settings: dict, arguments: tuple, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        MoleculeGP(**{"z": [8, 1, 1], **settings}).fit(*arguments)


def test_new_geometries_must_be_of_the_same_molecule(ammonia: MoleculeGP):
    with pytest.raises(ValueError, match=r"for the 4 atoms of z, not \(5, 3, 3\)"):
        ammonia.predict(X)
    same = np.zeros((1, 4, 3))
    with pytest.raises(ValueError, match="at the same place"):
        ammonia.predict_forces(same)


def test_errors_along_bonds_are_taken_for_noise():
    # they have no net force and no torque, so they leave what is known exactly as it is
    random, springs = (
        np.random.default_rng(0),
        ((0, 1, 500.0, 0.96), (0, 2, 500.0, 0.96), (1, 2, 150.0, 1.52)),
    )
    x = np.array([[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]) + 0.05 * random.normal(size=(100, 3, 3))
    energies, forces, errors = np.zeros(100), np.zeros(x.shape), np.zeros(x.shape)
    for first, second, stiffness, length in springs:
        bond = x[:, first] - x[:, second]
        distance = np.linalg.norm(bond, axis=1)
        energies += 0.5 * stiffness * (distance - length) ** 2
        for atom, sign in ((first, -1), (second, 1)):
            forces[:, atom] += sign * (stiffness * (distance - length) / distance)[:, None] * bond
        error = random.normal(size=(100, 1)) * bond
        errors[:, first] += error
        errors[:, second] -= error
    errors *= 1e-3 * forces.std() / errors.std()
    model = MoleculeGP([8, 1, 1]).fit(x[:40], energies[:40], forces[:40] + errors[:40])
    gap = model.predict_forces(x[40:]) - forces[40:]
    assert np.sqrt(np.mean(gap**2)) < 0.01 * forces.std()
