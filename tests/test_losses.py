import pytest
import torch

from orbitwise.losses import (
    LOSSES,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Multinomial,
    Squared,
    SquaredHinge,
    loss_of,
)

PLAIN = [
    Logistic(),
    Hinge(0.1),
    Hinge(1.5),
    SquaredHinge(),
    Squared(),
    EpsilonInsensitive(0.2),
    EpsilonInsensitive(0.2, 0.2),
    EpsilonInsensitive(0.0, 0.3),
]


def entries(dtype=torch.float64):
    f = torch.linspace(-3.001, 3, 401, dtype=dtype)
    return f.repeat(2), torch.cat([torch.ones_like(f), -torch.ones_like(f)])


@pytest.mark.parametrize("loss", PLAIN, ids=lambda loss: type(loss).__name__)
class TestDerivatives:
    def test_slopes_and_curvatures_are_those_of_the_values(self, loss):
        f, y = entries()
        f.requires_grad_()
        (slope,) = torch.autograd.grad(loss.value(f, y).sum(), f)
        torch.testing.assert_close(loss.slope(f, y), slope)
        step = 1e-6
        with torch.no_grad():
            bend = (loss.slope(f + step, y) - loss.slope(f - step, y)) / (2 * step)
            torch.testing.assert_close(loss.curvature(f, y), bend, rtol=1e-6, atol=1e-6)

    def test_it_is_convex_and_bends_at_most_by_its_bound(self, loss):
        f, y = entries()
        curvature = loss.curvature(f, y)
        assert (curvature >= 0).all()
        assert curvature.max() <= loss.curvature_bound * (1 + 1e-12)
        assert curvature.max() > 0.99 * loss.curvature_bound

    def test_single_precision_stays(self, loss):
        f, y = entries(torch.float32)
        double = loss.value(f.double(), y.double())
        assert loss.value(f, y).dtype == loss.slope(f, y).dtype == loss.curvature(f, y).dtype == torch.float32
        torch.testing.assert_close(loss.value(f, y).double(), double, rtol=1e-5, atol=1e-5)

    def test_a_huge_margin_is_no_trouble(self, loss):
        f = torch.tensor([1e8, -1e8], dtype=torch.float64)
        for part in (loss.value, loss.slope, loss.curvature):
            assert part(f, torch.ones_like(f)).isfinite().all()


def test_rounded_losses_come_close_to_the_pointed_ones():
    f, y = entries()
    assert (Hinge(0.1).value(f, y) - (1 - y * f).relu()).abs().max() <= 0.025 + 1e-12
    absolute = (f - y).abs()
    assert (EpsilonInsensitive(0.0, 0.1).value(f, y) - absolute).abs().max() <= 0.05 + 1e-12
    pointed = ((f - y).abs() - 0.3).relu()
    assert (EpsilonInsensitive(0.3, 0.1).value(f, y) - pointed).abs().max() <= 0.025 + 1e-12


def test_zero_residuals_cost_nothing():
    zero = torch.zeros(1, dtype=torch.float64)
    for loss in (Squared(), EpsilonInsensitive(0.1), EpsilonInsensitive(0.1, 0.1), EpsilonInsensitive(0.0)):
        assert loss.value(zero, zero).abs() < 1e-12
        assert loss.slope(zero, zero) == 0


class TestMultinomial:
    def test_it_is_cross_entropy_with_its_derivatives(self):
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        labels = torch.tensor([0, 2, 1, 1, 0])
        loss, codes = Multinomial(3), torch.nn.functional.one_hot(labels, 3).double().flatten()
        f = scores.flatten().requires_grad_()
        expected = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        torch.testing.assert_close(loss.value(f, codes).sum(), expected)
        (slope,) = torch.autograd.grad(loss.value(f, codes).sum(), f)
        torch.testing.assert_close(loss.slope(f, codes), slope)
        hessian = torch.func.hessian(lambda g: loss.value(g, codes).sum())(f.detach())
        direction = torch.randn(15, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(loss.curvature_product(f, codes, direction), hessian @ direction)
        assert torch.linalg.eigvalsh(hessian).max() <= loss.curvature_bound

    def test_two_classes_are_logistic(self):
        margin = torch.linspace(-3, 3, 7, dtype=torch.float64)
        pairs = torch.stack([torch.zeros_like(margin), margin], -1).flatten()
        codes = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(7)
        total = Multinomial(2).value(pairs, codes).unflatten(-1, (-1, 2)).sum(-1)
        torch.testing.assert_close(total, Logistic().value(margin, torch.ones_like(margin)))

    def test_entries_are_coupled(self):
        with pytest.raises(ValueError, match="couples its entries"):
            Multinomial(2).curvature(torch.zeros(2), torch.zeros(2))
        with pytest.raises(ValueError, match="at least two classes"):
            Multinomial(1)


def test_names():
    for name in LOSSES:
        assert loss_of(name).curvature_bound > 0
    assert loss_of(loss := Hinge(0.3)) is loss
    with pytest.raises(ValueError, match=r"Unknown loss 'logistik'.*Did you mean 'logistic'"):
        loss_of("logistik")


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_a_width_is_positive(width):
    with pytest.raises(ValueError, match="width must be positive"):
        Hinge(width)


def test_bad_epsilons():
    with pytest.raises(ValueError, match="epsilon must be finite"):
        EpsilonInsensitive(-0.1)
    with pytest.raises(ValueError, match="at most epsilon"):
        EpsilonInsensitive(0.1, 0.2)
