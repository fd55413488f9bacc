import pytest
import torch

from orbitwise.estimators.labels import encode, probabilities

CODES = torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(("coding", "columns"), [("one_hot", 3), ("stick_breaking", 2), ("dirichlet", 3)])
def test_three_classes(coding, columns):
    targets, _ = encode(coding, CODES, 3)
    assert targets.shape == (4, columns)


def test_two_classes_take_one_column():
    codes = torch.tensor([0, 1])
    assert encode("one_hot", codes, 2)[0].tolist() == [[-0.5], [0.5]]
    assert encode("stick_breaking", codes, 2)[0].tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize("coding", ["one_hot", "stick_breaking", "dirichlet"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_sum_to_one_and_prefer_the_right_class(coding, num_classes):
    codes = torch.arange(num_classes)
    targets, _ = encode(coding, codes, num_classes)
    mean = 4 * targets
    result = probabilities(coding, mean, torch.full_like(mean, 0.1), 2.0, num_classes)
    torch.testing.assert_close(result.sum(1), torch.ones(num_classes).double())
    assert result.argmax(1).tolist() == codes.tolist()


def test_a_wider_posterior_is_less_sure():
    mean = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    for coding in ("stick_breaking", "dirichlet"):
        narrow = probabilities(
            coding, mean, torch.full_like(mean, 1e-6), 1.0, 3 if coding == "stick_breaking" else 2
        )
        wide = probabilities(
            coding, mean, torch.full_like(mean, 9.0), 1.0, 3 if coding == "stick_breaking" else 2
        )
        assert wide.max() < narrow.max()


def test_unknown_coding():
    with pytest.raises(ValueError, match="one_hot"):
        encode("probit", CODES, 3)
