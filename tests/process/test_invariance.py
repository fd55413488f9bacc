"""One-sided averaging: proved, asserted and checked, or refused."""

import pytest
import torch
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Functional,
    Gradient,
    OrbitAverage,
    OrbitSum,
)
from orbitwise.kernels import WideNetworkKernel
from orbitwise.orbits import FiniteOrbit, closure
from orbitwise.process import Process
from orbitwise.process.process import check_asserted, is_rotation_invariant
from orbitwise.transforms import (
    LinearMaps,
    coordinate_permutations,
    exchange_permutations,
    negation,
    quarter_turns,
    turns,
)

PROVED = {
    "rbf": lambda: RBFKernel(),
    "matern 1/2": lambda: MaternKernel(nu=0.5),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "rational quadratic": lambda: RQKernel(),
    "linear": lambda: LinearKernel(),
    "polynomial": lambda: PolynomialKernel(power=3),
    "one lengthscale by name": lambda: RBFKernel(ard_num_dims=1),
    "scale": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "sum": lambda: RBFKernel() + ScaleKernel(LinearKernel()) + ConstantKernel(),
    "product": lambda: RBFKernel() * PolynomialKernel(power=2),
    "wide network": lambda: ScaleKernel(WideNetworkKernel(2, activation="erf")),
}
VALUES_ALONE = ("matern 1/2", "product", "wide network")
"""Kernels without second derivatives here."""
NOT_PROVED = {
    "ard": lambda: RBFKernel(ard_num_dims=3),
    "ard matern": lambda: ScaleKernel(MaternKernel(ard_num_dims=3)),
    "ard linear": lambda: LinearKernel(ard_num_dims=3),
    "active dimensions": lambda: RBFKernel(active_dims=[0, 1]),
    "scaled active dimensions": lambda: ScaleKernel(RBFKernel(active_dims=[0, 1])),
    "periodic": lambda: PeriodicKernel(),
    "sum with ard": lambda: RBFKernel() + RBFKernel(ard_num_dims=3),
    "product with active dimensions": lambda: RBFKernel() * RBFKernel(active_dims=[2]),
}
GROUPS = {
    "permutations": lambda: OrbitAverage(FiniteOrbit(coordinate_permutations(3))),
    "sum": lambda: OrbitSum(FiniteOrbit(negation(3))),
    "odd": lambda: OrbitAverage(
        FiniteOrbit(coordinate_permutations(3), weights=torch.tensor([1.0, -1, -1, 1, 1, -1]))
    ),
    "slope": lambda: (
        DirectionalDerivative(torch.tensor([1.0, 0.5, -0.5]))
        @ OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    ),
    "gradient": lambda: Gradient() @ OrbitAverage(FiniteOrbit(coordinate_permutations(3))),
}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inverse_distances(x: Tensor) -> Tensor:
    """Features of three atoms in space."""
    atoms = x.reshape(len(x), 3, 3)
    return torch.stack(
        [1 / (atoms[:, i] - atoms[:, j]).norm(dim=-1) for i, j in ((0, 1), (0, 2), (1, 2))], dim=-1
    )


def water() -> Functional:
    return OrbitAverage(FiniteOrbit(exchange_permutations(["H", "H", "O"], 3))) @ FeatureMap(
        inverse_distances
    )


@pytest.fixture
def count(evaluations: list[int]):
    """Kernel evaluations of a call."""

    def counting(call) -> int:
        evaluations.clear()
        with torch.no_grad():
            call()
        return sum(evaluations)

    return counting


def both(kernel: Kernel, rows, columns=None) -> list[tuple[Tensor, ...]]:
    """One-sided and two-sided covariances with their gradients by all hyperparameters."""
    found = []
    for one_sided in ("auto", False):
        matrix = Process(None, kernel, one_sided).covariance(rows, columns)
        probe = torch.cos(torch.arange(matrix.numel(), dtype=matrix.dtype)).reshape(matrix.shape)
        slopes = torch.autograd.grad((probe * matrix).sum(), list(kernel.parameters()), allow_unused=True)
        found.append((matrix, *(slope for slope in slopes if slope is not None)))
    return found


@pytest.mark.parametrize("kernel", PROVED.values(), ids=PROVED)
def test_kernels_of_distances_and_products_are_proved_invariant(kernel):
    assert is_rotation_invariant(kernel())


@pytest.mark.parametrize("kernel", NOT_PROVED.values(), ids=NOT_PROVED)
def test_other_kernels_are_not(kernel):
    assert not is_rotation_invariant(kernel())


def test_a_subclass_is_not_taken_for_its_parent():
    class Tilted(RBFKernel):
        pass

    assert not is_rotation_invariant(Tilted())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", [name for name in PROVED if name not in VALUES_ALONE])
def test_one_side_equals_two_in_value_and_gradient(name: str, group: str):
    kernel, functional = PROVED[name]().double(), GROUPS[group]()
    rows, columns = functional.atoms(seeded(4, 3)), functional.atoms(seeded(3, 3, seed=1))
    for pair in (both(kernel, rows, columns), both(kernel, rows)):
        # A linear function that is even, or odd under exchange, is zero.
        assert pair[0][0].abs().max() > 1e-3 or (name == "linear" and group in ("sum", "odd"))
        for one, two in zip(*pair, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", VALUES_ALONE)
def test_one_side_equals_two_for_values_of_any_proved_kernel(name: str):
    functional = GROUPS["permutations"]()
    for one, two in zip(*both(PROVED[name]().double(), functional.atoms(seeded(4, 3))), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "orbit",
    [
        FiniteOrbit(turns(5)),
        closure(
            turns(3), LinearMaps(torch.stack([torch.eye(2), torch.diag(torch.tensor([1.0, -1]))]).double())
        ),
    ],
    ids=["turns", "mirrored turns"],
)
def test_rotations_are_one_sided_too(orbit: FiniteOrbit, count):
    rows, kernel = OrbitAverage(orbit).atoms(seeded(4, 2)), RBFKernel().double()
    for one, two in zip(*both(kernel, rows), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
    assert count(lambda: Process(None, kernel).covariance(rows)) == 16 * orbit.size


def test_maps_that_change_distances_are_two_sided(count):
    """A shear of order two: a group, but no isometry."""
    shear = torch.tensor([[1.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    orbit = FiniteOrbit(LinearMaps(torch.stack([torch.eye(2, dtype=torch.float64), shear]), is_group=True))
    rows, kernel = OrbitAverage(orbit).atoms(seeded(4, 2)), RBFKernel().double()
    assert count(lambda: Process(None, kernel).covariance(rows)) == 16 * 4
    with pytest.raises(ValueError, match="one_sided=True asserts"):
        Process(None, kernel, one_sided=True).covariance(rows)


def test_what_it_saves(count):
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(4))).atoms(seeded(5, 4))
    kernel = RBFKernel().double()
    assert count(lambda: Process(None, kernel).covariance(rows)) == 25 * 24
    assert count(lambda: Process(None, kernel, one_sided=False).covariance(rows)) == 25 * 24**2
    assert count(lambda: Process(None, kernel).variance(rows)) == 5 * 24


@pytest.mark.parametrize(
    "name", ["ard", "ard matern", "active dimensions", "scaled active dimensions", "sum with ard"]
)
def test_one_lengthscale_a_coordinate_is_never_taken_for_invariant(name: str, count):
    """Even while they are equal: values would agree, but gradients would not."""
    kernel, rows = NOT_PROVED[name]().double(), GROUPS["permutations"]().atoms(seeded(4, 3))
    for one, two in zip(*both(kernel, rows), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert count(lambda: Process(None, kernel).variance(rows)) >= 4 * 36


@pytest.mark.parametrize("name", sorted(set(NOT_PROVED) - {"periodic"}))
def test_a_wrong_assertion_raises(name: str):
    kernel, rows = NOT_PROVED[name]().double(), GROUPS["permutations"]().atoms(seeded(4, 3))
    with pytest.raises(ValueError, match="one_sided='auto'"):
        Process(None, kernel, one_sided=True).covariance(rows)


def test_a_right_assertion_that_no_proof_covers_is_taken():
    """A periodic kernel is invariant to permutations, though not to rotations."""
    kernel, rows = PeriodicKernel().double(), GROUPS["permutations"]().atoms(seeded(4, 3))
    one, two = (Process(None, kernel, one_sided).covariance(rows) for one_sided in (True, False))
    torch.testing.assert_close(one, two)


def test_an_assertion_about_a_gradient_block_is_checked():
    rows = (Gradient() @ OrbitAverage(FiniteOrbit(coordinate_permutations(3)))).atoms(seeded(4, 3))
    with pytest.raises(ValueError, match="one_sided='auto'"):
        Process(None, RBFKernel(active_dims=[0]).double(), one_sided=True).covariance(rows)


def test_frozen_equal_lengthscales_may_be_asserted():
    """Without gradients, equal lengthscales are one."""
    kernel, rows = RBFKernel(ard_num_dims=3).double(), GROUPS["permutations"]().atoms(seeded(4, 3))
    kernel.requires_grad_(False)
    torch.testing.assert_close(
        Process(None, kernel, True).covariance(rows), Process(None, kernel, False).covariance(rows)
    )


def test_a_feature_map_may_be_asserted_and_is_equal(count):
    """Inverse distances of exchanged atoms are exchanged inverse distances."""
    rows = water().atoms(seeded(4, 9))
    kernel = RBFKernel().double()
    auto, asserted = Process(None, kernel), Process(None, kernel, one_sided=True)
    two, one = auto.covariance(rows), asserted.covariance(rows)
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(each.sum(), kernel.raw_lengthscale)[0] for each in (one, two)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    assert count(lambda: auto.covariance(rows)) == 16 * 4
    assert count(lambda: asserted.covariance(rows)) == 16 * 2


def test_forces_through_features_may_be_asserted():
    rows = (Gradient() @ water()).atoms(seeded(3, 9))
    kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
    one, two = (Process(None, kernel, one_sided).covariance(rows) for one_sided in (True, False))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


def test_features_that_break_the_symmetry_raise():
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(3))) @ FeatureMap(
        lambda x: x * torch.tensor([1.0, 2, 3])
    )
    rows = functional.atoms(seeded(4, 3))
    with pytest.raises(ValueError, match="one_sided='auto'"):
        Process(None, RBFKernel().double(), one_sided=True).covariance(rows)
    torch.testing.assert_close(
        Process(None, RBFKernel().double()).covariance(rows),
        Process(None, RBFKernel().double(), False).covariance(rows),
    )


def test_slopes_along_fixed_directions_are_no_orbit():
    """Averaging ∂_v g over the points of an orbit leaves v where it is: the group does not carry over."""
    v = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
    rows = (OrbitAverage(FiniteOrbit(coordinate_permutations(3))) @ DirectionalDerivative(v)).atoms(
        seeded(4, 3)
    )
    kernel = RBFKernel().double()
    matrices = [Process(None, kernel, one_sided).covariance(rows) for one_sided in ("auto", False, True)]
    for matrix in matrices:
        torch.testing.assert_close(matrix, matrices[1])


def test_the_check_looks_at_tangents():
    """Points alone would pass: the covariance of slopes along one fixed direction is not invariant."""
    v = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
    points = OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(4, 3))
    slopes = (OrbitAverage(FiniteOrbit(coordinate_permutations(3))) @ DirectionalDerivative(v)).atoms(
        seeded(4, 3)
    )
    pretended = type(points)(
        slopes.points, slopes.weights, slopes.tangents, slopes.order, slopes.draw, (), points.symmetry
    )
    with pytest.raises(ValueError, match="one_sided='auto'"):
        check_asserted(RBFKernel().double(), pretended)
    assert check_asserted(RBFKernel().double(), points)


def test_one_row_says_too_little(count):
    """k(hx, hx) is constant for every stationary kernel, so the check is repeated when more rows come."""
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    kernel = RBFKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([[0.5, 1.0, 2.0]])
    process = Process(None, kernel, one_sided=True)
    assert not check_asserted(kernel, functional.atoms(seeded(1, 3)))
    process.variance(functional.atoms(seeded(1, 3)))
    with pytest.raises(ValueError, match="one_sided='auto'"):
        process.covariance(functional.atoms(seeded(4, 3)))


def test_an_assertion_is_checked_once(count):
    rows, process = water().atoms(seeded(4, 9)), Process(None, RBFKernel().double(), one_sided=True)
    first, second = (count(lambda: process.covariance(rows)) for _ in range(2))
    assert first > second == 16 * 2


def test_images_of_a_cosine_kernel_may_be_asserted():
    """Any kernel may be asserted: cos(π|x-y|/p) is a function of the distance that no proof covers."""
    kernel, rows = (
        CosineKernel().double(),
        OrbitAverage(FiniteOrbit(quarter_turns((2, 2)))).atoms(seeded(4, 4)),
    )
    assert not is_rotation_invariant(kernel)
    one, two = (Process(None, kernel, one_sided).covariance(rows) for one_sided in (True, False))
    torch.testing.assert_close(one, two)


def test_evaluations_have_no_symmetry_to_use(count):
    process = Process(None, RBFKernel().double(), one_sided=True)
    assert count(lambda: process.covariance(Evaluation().atoms(seeded(4, 3)))) == 16
