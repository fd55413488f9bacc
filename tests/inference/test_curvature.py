"""Hessians by finite differences, compared with closed forms."""

import numpy as np
import pytest

from orbitwise.inference.optimise.training import (
    finite_difference_hessian,
    positive_definite,
    standard_errors,
)

MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, -0.5], [0.0, -0.5, 2.0]])


def cubic(point: np.ndarray) -> np.ndarray:
    """The gradient of ½ zᵀMz + Σ z³/3, whose Hessian is M + 2 diag(z)."""
    return MATRIX @ point + point**2


@pytest.mark.parametrize("is_known", [True, False])
def test_differences_of_a_linear_gradient_are_exact_for_steps_of_any_sign(is_known):
    point = np.array([0.3, -1.0, 2.0])
    start = MATRIX @ point if is_known else None
    found = finite_difference_hessian(lambda z: MATRIX @ z, point, np.array([0.1, -0.2, 3.0]), start)
    np.testing.assert_allclose(found, MATRIX, atol=1e-12)


def test_central_differences_leave_no_error_of_first_order():
    point = np.array([0.3, -1.0, 2.0])
    exact = MATRIX + 2 * np.diag(point)
    np.testing.assert_allclose(finite_difference_hessian(cubic, point, 0.1, central=True), exact, atol=1e-12)
    # one-sided: off by the step, 2z + h in place of 2z
    one_sided = finite_difference_hessian(cubic, point, 0.1)
    np.testing.assert_allclose(one_sided, exact + 0.1 * np.eye(3), atol=1e-12)


def test_gradients_are_counted_and_a_coordinate_that_cannot_move_is_left_out():
    seen = []

    def gradient(z: np.ndarray) -> np.ndarray:
        seen.append(z)
        return MATRIX @ z if z[1] < 1 else np.full(3, np.nan)

    found = finite_difference_hessian(gradient, np.zeros(3), np.array([0.0, 1.0, 1.0]))
    assert len(seen) == 3
    assert found[0, 0] == found[1, 1] == 0
    assert found[2, 2] == 2.0


def test_saddles_are_made_positive_and_can_be_factored():
    curvature = np.diag([1e14, -2.0, 0.0])
    values = np.linalg.eigvalsh(positive_definite(curvature))
    assert values[-1] == pytest.approx(1e14)
    assert values.min() > 0
    np.linalg.cholesky(positive_definite(curvature))
    np.testing.assert_allclose(positive_definite(np.diag([3.0, -2.0])), np.diag([3.0, 2.0]), atol=1e-12)


def test_standard_errors_are_those_of_the_inverse_and_infinite_where_it_is_flat():
    expected = np.sqrt(np.diag(np.linalg.inv(MATRIX)))
    np.testing.assert_allclose(standard_errors(MATRIX), expected)
    found = standard_errors(np.diag([4.0, 0.0, -1.0]))
    np.testing.assert_array_equal(found, [0.5, np.inf, np.inf])
