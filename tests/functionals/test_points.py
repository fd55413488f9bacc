import pytest
import torch

from orbitwise.functionals import Difference, DirectionalDerivative, Evaluation, FeatureMap
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Case, FunctionalContract, Waves, apply, slope_of
from tests.contracts.orbit_contract import inputs


def features(x: torch.Tensor) -> torch.Tensor:
    """[n, 2] to [n, 3], curved."""
    return torch.stack([x[:, 0] * x[:, 1], x[:, 0].exp(), x[:, 1].sin()], -1)


class TestEvaluation(FunctionalContract):
    @pytest.fixture
    def case(self):
        return Case(Evaluation(), (2,), lambda g, x: g(x))

    def test_is_the_identity(self):
        assert Evaluation().is_identity
        atoms = Evaluation().atoms(inputs(2))
        assert torch.equal(atoms.points[:, 0], inputs(2))
        assert atoms.num_atoms == 1


class TestDifference(FunctionalContract):
    @pytest.fixture
    def case(self):
        return Case(Difference(), (2, 3), lambda g, pair: g(pair[0]) - g(pair[1]))

    @pytest.mark.parametrize("shape", [(3, 2), (3, 1, 2), (3, 3, 2)], ids=str)
    def test_takes_pairs(self, shape):
        with pytest.raises(
            ValueError, match=rf"pairs of inputs \[n, 2, d\], not shape \({shape[0]}, {shape[1]}"
        ):
            Difference().atoms(torch.zeros(shape))

    def test_pairs_of_moved_inputs(self):
        pairs, g = inputs(4).reshape(3, 2, 2), Waves.random(3)
        atoms = (Difference() @ FeatureMap(features)).atoms(pairs)
        expected = [g(features(a[None])[0]) - g(features(b[None])[0]) for a, b in pairs]
        torch.testing.assert_close(apply(atoms, g), torch.stack(expected))


class TestFeatureMap(FunctionalContract):
    @pytest.fixture
    def case(self):
        return Case(FeatureMap(features), (2,), lambda g, x: g(features(x[None])[0]), width_of_g=3)

    def test_tangents_are_pushed_by_the_jacobian(self):
        x, direction = inputs(2), torch.tensor([0.3, -2.0], dtype=torch.float64)
        atoms = (DirectionalDerivative(direction) @ FeatureMap(features)).atoms(x)
        torch.testing.assert_close(atoms.points[:, 0], features(x))
        zero = torch.zeros(3, dtype=torch.float64)
        jacobian = torch.stack(
            [
                torch.stack([x[:, 1], x[:, 0]], -1),
                torch.stack([x[:, 0].exp(), zero], -1),
                torch.stack([zero, x[:, 1].cos()], -1),
            ],
            1,
        )
        torch.testing.assert_close(atoms.tangents[:, 0], jacobian @ direction)
        assert atoms.order.tolist() == [1]

    def test_slopes_of_features(self):
        x, direction, g = inputs(2), torch.tensor([0.3, -2.0], dtype=torch.float64), Waves.random(3)
        atoms = (DirectionalDerivative(direction) @ FeatureMap(features)).atoms(x)
        slopes = [slope_of(lambda y: g(features(y[None])[0]), row, direction) for row in x]
        torch.testing.assert_close(apply(atoms, g), torch.stack(slopes), rtol=0, atol=1e-7)

    def test_features_of_features_are_read_from_the_inside_out(self):
        """(a @ b) is a of the function x ↦ b_x(g): g(φ_b(φ_a(x)))."""
        x, g = inputs(2), Waves.random(1)
        first, then = FeatureMap(features), FeatureMap(lambda y: y.prod(-1, keepdim=True))
        torch.testing.assert_close(
            apply((first @ then).atoms(x), g), torch.stack([g(row.prod()[None]) for row in features(x)])
        )

    def test_a_module_is_trained_with_the_functional(self):
        layer = torch.nn.Linear(2, 3).double()
        functional = FeatureMap(layer)
        assert set(functional.parameters()) == set(layer.parameters())
        functional.atoms(inputs(2)).points.sum().backward()
        assert layer.weight.grad.abs().max() > 0

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (lambda x: x.sum(-1), r"turned \(3, 2\) into \(3,\)"),
            (lambda x: x[:1], r"turned \(3, 2\) into \(1, 2\)"),
            (lambda x: x[:, :0], r"turned \(3, 2\) into \(3, 0\)"),
            (lambda x: x.long(), r"floating-point features, not torch\.int64"),
        ],
    )
    def test_bad_features(self, wrong, message: str):
        with unchecked(), pytest.raises(ValueError, match=message):
            FeatureMap(wrong).atoms(inputs(2))
