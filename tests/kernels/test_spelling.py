"""parse and spell are inverse to each other."""

import pytest
import torch
from gpytorch.kernels import GridInterpolationKernel, Kernel, RBFKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitwise.kernels import BASES, parse, spell
from orbitwise.kernels.spelling import expression_of, parse_expression

X = torch.rand(7, 3, dtype=torch.float64)

names = st.sampled_from(sorted(set(BASES) - {"cosine"}))
texts = st.recursive(
    names,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]} + {pair[1]}"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]})*({pair[1]})"),
        st.tuples(st.sampled_from([0.5, 2.0, 30.0]), inner).map(lambda pair: f"{pair[0]}*({pair[1]})"),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=40)
@given(texts)
def test_round_trips(text: str):
    kernel = parse(text, num_dims=3)
    with torch.no_grad():
        for number, parameter in enumerate(kernel.parameters()):
            parameter += 0.1 * torch.cos(torch.arange(parameter.numel()).double() + number).reshape(
                parameter.shape
            )
    structure, values = spell(kernel), spell(kernel, values=True, digits=17)
    again = parse(values, num_dims=3)
    assert spell(parse(structure, num_dims=3)) == structure
    assert spell(again) == structure
    if "arc" not in text:  # its angle and radius have no place in the spelling
        with torch.no_grad():
            torch.testing.assert_close(again(X).to_dense(), kernel(X).to_dense(), rtol=1e-9, atol=1e-9)


def test_dtype_and_lengthscales():
    assert all(
        each.dtype == torch.float32 for each in parse("rbf + linear", dtype=torch.float32).parameters()
    )
    assert spell(parse("rbf*rq", num_dims=2, separate_lengthscales=True)) == "rbf(ard)*rq(ard)"


def test_expressions_of_kernels_made_by_hand():
    kernel = ScaleKernel(ScaleKernel(RBFKernel(active_dims=(1,))) + RBFKernel())
    assert spell(kernel) == "rbf[1] + rbf"
    assert expression_of(kernel) == parse_expression("rbf[1] + rbf")


@pytest.mark.parametrize("num_dims", [0, -1, True])
def test_the_number_of_columns_is_checked(num_dims: int):
    with pytest.raises(ValueError, match="num_dims must be a whole number"):
        parse("rbf", num_dims)


def test_what_has_no_spelling_is_said():
    strange: Kernel = GridInterpolationKernel(RBFKernel(), grid_size=4, num_dims=1)
    with pytest.raises(ValueError, match="GridInterpolationKernel has no spelling"):
        spell(strange)
    with pytest.raises(ValueError, match="batch shape"):
        spell(RBFKernel(batch_shape=torch.Size([2])))
