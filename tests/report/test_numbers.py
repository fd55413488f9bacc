import numpy as np
import pytest

from orbitwise.report.numbers import mean_with_error, number, share, wilson, with_error


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1276.13, 55.7, "1,276 ± 56"),
        (66.4, 7.1, "66 ± 7"),
        (27.71, 1.68, "27.7 ± 1.7"),
        (-0.0312, 0.0044, "−0.031 ± 0.004"),
        (1.2e-7, 6e-9, "(1.20 ± 0.06) × 10⁻⁷"),
        (12.345, 0.0, "12.3"),
        (12.345, float("inf"), "12.3"),
        (12.345, None, "12.3"),
    ],
)
def test_a_number_has_the_digits_that_its_error_leaves(value, error, text):
    assert with_error(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-1.5, "−1.50"), (1234.5, "1,234"), (3e-9, "3.00 × 10⁻⁹")]
)
def test_numbers_are_plain(value, text):
    assert number(value) == text


def test_a_number_that_rounds_to_nothing_has_no_sign():
    assert number(-0.0001, 1) == "0.0"
    assert number(0.0001, 1, signed=True) == "0.0"
    assert number(float("nan")) == "not finite"


def test_wilsons_interval_is_that_of_the_textbook():
    # 10 of 100 at 95 %: 0.0552 to 0.1744
    low, high = wilson(10, 100)
    assert (round(low, 4), round(high, 4)) == (0.0552, 0.1744)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 20)[0] == pytest.approx(0, abs=1e-12)
    assert wilson(0, 20)[1] > 0.1


def test_a_share_comes_with_its_interval():
    assert share(10, 100) == "10.0 % (95 % interval 5.5 to 17.4 %)"


def test_the_error_of_a_mean():
    mean, error = mean_with_error(np.array([1.0, 2.0, 3.0]))
    assert mean == 2.0
    assert error == pytest.approx(1 / np.sqrt(3))
    assert mean_with_error(np.array([1.0])) == (1.0, None)
