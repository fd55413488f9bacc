"""What every transform promises. A test class inherits a contract and defines `case`: (transform, width)."""

import itertools

import pytest
import torch
from torch import Tensor

from orbitwise.transforms import SignedPermutations, Transform
from orbitwise.transforms.permutations import compose, element_keys
from tests.contracts.annotations import unchecked

Case = tuple[Transform, int]


def inputs(width: int, rows: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def parameters(transform: Transform, rows: int = 3, samples: int = 4, dtype=torch.float64) -> Tensor:
    """Parameters of `samples` moves for each row, away from the identity."""
    generator = torch.Generator().manual_seed(2)
    shape = (rows, samples, transform.num_parameters)
    if transform.size is not None:
        return torch.randint(transform.size, shape, generator=generator)
    return (0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


class TransformContract:
    """Holds for discrete and continuous families."""

    narrower: int | None = 1
    """By how much narrower inputs do not fit, None where every width does."""

    @pytest.fixture
    def case(self) -> Case:
        raise NotImplementedError

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_moves_have_the_shape_and_precision_of_the_input(self, case: Case, dtype: torch.dtype):
        transform, width = case
        alpha = parameters(transform)
        moved = transform(inputs(width, dtype=dtype), alpha)
        assert moved.shape == (3, 4, width)
        assert moved.dtype == dtype
        exact = transform(inputs(width), alpha)
        torch.testing.assert_close(moved.double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0)

    def test_zero_is_the_identity(self, case: Case):
        transform, width = case
        x = inputs(width)
        moved = transform(x, torch.zeros_like(parameters(transform, samples=1)))
        torch.testing.assert_close(moved[:, 0], x, rtol=0, atol=1e-12)

    def test_a_move_is_deterministic(self, case: Case):
        transform, width = case
        x, alpha = inputs(width), parameters(transform)
        before = x.clone(), alpha.clone()
        first = transform(x, alpha)
        torch.rand(3)
        assert torch.equal(transform(x, alpha), first)
        assert torch.equal(x, before[0])
        assert torch.equal(alpha, before[1])

    def test_rows_and_samples_do_not_meet(self, case: Case):
        transform, width = case
        x, alpha = inputs(width), parameters(transform)
        together = transform(x, alpha)
        for i, s in itertools.product(range(3), range(4)):
            alone = transform(x[i : i + 1], alpha[i : i + 1, s : s + 1])
            torch.testing.assert_close(alone[0, 0], together[i, s], rtol=1e-12, atol=1e-12)

    def test_isometric_says_whether_distances_and_norms_are_kept(self, case: Case):
        transform, width = case
        x, shared = inputs(width), parameters(transform, rows=1, samples=20).expand(3, -1, -1)
        moved = transform(x, shared)
        products = torch.einsum("nsd,msd->snm", moved, moved)
        assert torch.allclose(products, (x @ x.T).expand_as(products), rtol=1e-9) is transform.isometric

    def test_forward_derivatives_along_the_input(self, case: Case):
        transform, width = case
        x, alpha = inputs(width), parameters(transform)
        direction = torch.randn_like(x)
        _, slope = torch.func.jvp(lambda y: transform(y, alpha), (x,), (direction,))
        step = 1e-4
        difference = (transform(x + step * direction, alpha) - transform(x - step * direction, alpha)) / (
            2 * step
        )
        torch.testing.assert_close(slope, difference, rtol=1e-7, atol=1e-7)

    def test_reverse_derivatives_along_the_input(self, case: Case):
        transform, width = case
        x, alpha = inputs(width, rows=2).requires_grad_(), parameters(transform, rows=2, samples=2)
        assert torch.autograd.gradcheck(lambda y: transform(y, alpha), x, fast_mode=True)

    def test_nan_passes_in_its_row(self, case: Case):
        transform, width = case
        x = inputs(width)
        x[1] = torch.nan
        moved = transform(x, parameters(transform))
        assert moved[1].isnan().any()
        assert moved[[0, 2]].isfinite().all()

    def test_wrong_width(self, case: Case):
        transform, width = case
        wrong = width - (self.narrower or 1)
        x = torch.zeros(2, wrong)
        if self.narrower is None:
            assert transform(x, parameters(transform, rows=2)).shape[-1] == wrong
            return
        with unchecked(), pytest.raises(ValueError, match=rf"\b{wrong}\b") as error:
            transform(x, parameters(transform, rows=2))
        assert any(
            str(size) in str(error.value) for size in (width, getattr(transform, "num_dimensions", width))
        )
        with pytest.raises(ValueError, match=rf"\b{wrong}\b"):
            transform.check(x)

    @pytest.mark.parametrize("shape", [(0, 2), (2, 0), (1, 1), (1, 1, 1)], ids=str)
    def test_wrong_rank_or_empty(self, case: Case, shape: tuple[int, ...]):
        transform, width = case
        sizes = [width if size == 2 else size for size in shape]
        x = torch.zeros(sizes) if shape != (1, 1) else torch.zeros(width)
        with unchecked(), pytest.raises(ValueError, match=r"\[n, d\].*shape \("):
            transform(x, parameters(transform, rows=len(x)))

    def test_input_that_is_not_floating_point(self, case: Case):
        transform, width = case
        alpha = parameters(transform, rows=2)
        with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
            transform(torch.ones(2, width, dtype=torch.long), alpha)
        with unchecked(), pytest.raises(ValueError, match="list"):
            transform([[0.0] * width] * 2, alpha)

    def test_wrong_parameters(self, case: Case):
        transform, width = case
        x, alpha = inputs(width), parameters(transform)
        expected = rf"\[3, s, {transform.num_parameters}\]"
        for wrong in (alpha[0], alpha[:2], torch.cat([alpha, alpha], -1), alpha[..., :0]):
            with unchecked(), pytest.raises(ValueError, match=expected):
                transform(x, wrong)


class ContinuousContract(TransformContract):
    """Holds for families with continuous parameters."""

    tangent_step: float = 1e-5
    """The step of the central differences that `tangent` must equal."""

    def test_is_continuous(self, case: Case):
        transform, width = case
        assert transform.size is None
        assert len(set(transform.parameter_names)) == transform.num_parameters > 0
        with pytest.raises(ValueError, match="continuous"):
            transform.all_elements(inputs(width))

    def test_parameters_take_the_precision_of_the_input(self, case: Case):
        transform, width = case
        x, alpha = inputs(width, dtype=torch.float32), parameters(transform)
        assert torch.equal(transform(x, alpha), transform(x, alpha.float()))

    def test_tangent_is_the_derivative_at_the_identity(self, case: Case):
        transform, width = case
        x = inputs(width)
        tangent = transform.tangent(x)
        assert tangent.shape == (3, transform.num_parameters, width)
        for j in range(transform.num_parameters):
            step = torch.zeros(3, 1, transform.num_parameters, dtype=torch.float64)
            step[..., j] = self.tangent_step
            difference = (transform(x, step) - transform(x, -step)) / (2 * self.tangent_step)
            torch.testing.assert_close(tangent[:, j], difference[:, 0], rtol=1e-7, atol=1e-7)

    def test_tangent_is_differentiable_along_the_input(self, case: Case):
        transform, width = case
        x = inputs(width, rows=2).requires_grad_()
        assert torch.autograd.gradcheck(transform.tangent, x, fast_mode=True)

    def test_tangent_checks_its_input(self, case: Case):
        transform, width = case
        with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
            transform.tangent(torch.ones(2, width, dtype=torch.long))

    def test_differentiable_in_the_parameters(self, case: Case):
        transform, width = case
        x, alpha = inputs(width, rows=2), parameters(transform, rows=2, samples=2).requires_grad_()
        assert torch.autograd.gradcheck(lambda a: transform(x, a), alpha, fast_mode=True)


class DiscreteContract(TransformContract):
    """Holds for families of finitely many elements."""

    def test_is_discrete(self, case: Case):
        transform, width = case
        assert transform.size is not None
        assert transform.num_parameters == 1
        with pytest.raises(ValueError, match="no tangent"):
            transform.tangent(inputs(width))

    def test_all_elements_are_moves_one_by_one(self, case: Case):
        transform, width = case
        x = inputs(width)
        moved = transform.all_elements(x)
        assert moved.shape == (3, transform.size, width)
        for e in range(transform.size):
            torch.testing.assert_close(
                moved[:, e], transform(x, torch.full((3, 1, 1), e))[:, 0], rtol=0, atol=1e-12
            )
        torch.testing.assert_close(moved, Transform.all_elements(transform, x), rtol=0, atol=1e-12)

    def test_all_elements_check_their_input(self, case: Case):
        transform, width = case
        with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
            transform.all_elements(torch.ones(2, width, dtype=torch.long))

    def test_there_are_no_other_elements(self, case: Case):
        transform, width = case
        for wrong in (-1, transform.size):
            with pytest.raises(ValueError, match=f"0, …, {transform.size - 1}"):
                transform(inputs(width), torch.full((3, 1, 1), wrong))

    def test_a_group_is_closed(self, case: Case):
        transform, width = case
        orbit = transform.all_elements(inputs(width, rows=1))[0]
        again = transform.all_elements(orbit).flatten(0, 1)
        gap = torch.cdist(again, orbit, compute_mode="donot_use_mm_for_euclid_dist").amin(-1)
        assert bool((gap < 1e-9).all()) is transform.is_group


def assert_group(family: SignedPermutations) -> None:
    """The group axioms in integers: the identity first, no element twice, closed, with inverses."""
    keys = element_keys(family.index, family.sign)
    known = set(keys)
    assert len(known) == family.size == len(family.index)
    assert torch.equal(family.index[0], torch.arange(family.index.shape[-1]))
    assert (family.sign[0] == 1).all()
    for e in range(family.size):
        products = element_keys(*compose(family.index[e], family.sign[e], family.index, family.sign))
        assert set(products) == known
        assert keys[0] in products
