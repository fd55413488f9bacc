import torch

from orbitwise.inference.risk import CopiedGram, DenseGram, ProductGram


def matrix(size=4):
    points = torch.randn(size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.exp(-torch.cdist(points, points).square())


def test_products_columns_and_norms_agree():
    dense = matrix()
    structured = ProductGram(lambda v: dense @ v, lambda i: dense[:, i], dense.diagonal())
    vectors = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    index = torch.tensor([2, 0])
    whole = DenseGram(dense)
    torch.testing.assert_close(structured.product(vectors), whole.product(vectors))
    torch.testing.assert_close(structured.product(vectors[0]), whole.product(vectors[0]))
    torch.testing.assert_close(structured.columns(index), whole.columns(index))
    torch.testing.assert_close(structured.diagonal(), whole.diagonal())
    assert structured.num_rows == whole.num_rows == 4


def test_a_batch_of_matrices():
    batch = torch.stack([matrix(), 2 * matrix()])
    vectors = torch.ones(2, 4, dtype=torch.float64)
    torch.testing.assert_close(DenseGram(batch).product(vectors)[1], 2 * matrix().sum(1))
    assert DenseGram(batch).batch_shape == (2,)


def test_copies_are_a_kronecker_product():
    copied = CopiedGram(DenseGram(matrix()), 3)
    expected = torch.kron(matrix(), torch.eye(3, dtype=torch.float64))
    vector = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(copied.product(vector), expected @ vector)
    index = torch.tensor([0, 7, 11])
    torch.testing.assert_close(copied.columns(index), expected[:, index])
    torch.testing.assert_close(copied.diagonal(), expected.diagonal())
    assert copied.num_rows == 12
    assert copied.batch_shape == ()
