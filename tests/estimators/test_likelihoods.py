"""Names and instances of likelihoods, labels as targets, and posteriors as class probabilities."""

import pytest
import torch

from orbitwise.estimators.classifier import class_likelihood, class_probabilities
from orbitwise.estimators.regressor import regression_likelihood
from orbitwise.likelihoods import Poisson, StudentT

CODES = torch.tensor([0, 1, 2, 1])
CODINGS = ["one_hot", "stick_breaking", "dirichlet", "softmax"]


@pytest.mark.parametrize(("coding", "columns"), list(zip(CODINGS, (3, 2, 3, 3), strict=True)))
def test_three_classes(coding, columns):
    assert class_likelihood(coding, 3).encode_labels(CODES, 3).shape == (4, columns)


def test_two_classes_take_one_column():
    codes = torch.tensor([0, 1])
    assert class_likelihood("one_hot", 2).encode_labels(codes, 2).tolist() == [[-0.5], [0.5]]
    assert class_likelihood("stick_breaking", 2).encode_labels(codes, 2).tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_sum_to_one_and_prefer_the_right_class(coding, num_classes):
    codes = torch.arange(num_classes)
    likelihood = class_likelihood(coding, num_classes)
    mean = 4 * likelihood.encode_labels(codes, num_classes)
    result = class_probabilities(likelihood, mean, torch.full_like(mean, 0.1), 2.0)
    torch.testing.assert_close(result.sum(1), torch.ones(num_classes).double())
    assert result.argmax(1).tolist() == codes.tolist()


@pytest.mark.parametrize(("coding", "num_classes"), [("stick_breaking", 3), ("dirichlet", 2), ("softmax", 2)])
def test_a_wider_posterior_is_less_sure(coding, num_classes):
    likelihood = class_likelihood(coding, num_classes)
    mean = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    narrow, wide = (
        class_probabilities(likelihood, mean, torch.full_like(mean, size), 1.0).max() for size in (1e-6, 9.0)
    )
    assert wide < narrow


def test_unknown_names_list_those_that_are_known():
    with pytest.raises(
        ValueError, match="'one_hot', 'stick_breaking', 'dirichlet', 'softmax', or a Likelihood"
    ):
        class_likelihood("probit", 3)
    with pytest.raises(ValueError, match="'gaussian', 'laplace', 'poisson', 'student_t', or a Likelihood"):
        regression_likelihood("one_hot")


def test_an_instance_is_copied():
    given = StudentT(0.2, 5.0)
    taken = regression_likelihood(given)
    assert isinstance(taken, StudentT)
    assert taken is not given
    assert taken.degrees.item() == pytest.approx(5)
    assert isinstance(regression_likelihood("poisson"), Poisson)
