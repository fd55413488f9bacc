"""Values as JSON: plain data, arrays of labels, shared objects, and sentences for what cannot be stored."""

import json
import math

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitwise.functionals import FeatureMap, OrbitAverage
from orbitwise.orbits import JitterOrbit, ModuleOrbit
from orbitwise.storage import StorageError
from orbitwise.storage.objects import Writer
from tests.storage.round_trip import again

KEYS = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_come_back(value: object):
    assert repr(again(value)) == repr(value)


def test_numbers_that_json_lacks_come_back():
    assert math.isnan(again(math.nan))
    assert again([math.inf, -math.inf, np.float64(0.1), np.int64(3), np.True_]) == [
        math.inf, -math.inf, 0.1, 3, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "array",
    [
        np.array(["b", "ä", "longer"]),
        np.array(["b", 1, 2.5, None, True], dtype=object),
        np.array([True, False]),
        np.array([-(2**60), 3]),
        np.array([1.5, math.nan]),
        np.array([2**63], dtype=np.uint64),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.array([], dtype="<U3"),
    ],
)
def test_arrays_of_labels_come_back(array: np.ndarray):
    back = again(array)
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)


def test_what_is_shared_stays_shared():
    tensor, orbit = torch.ones(2), JitterOrbit(3)
    first, second, one, other, average = again([tensor, tensor, orbit, orbit, OrbitAverage(orbit)])
    assert first is second
    assert one is other
    assert average.orbit is one


def test_objects_are_listed_before_those_that_need_them():
    writer = Writer()
    assert writer.value(OrbitAverage(JitterOrbit(3)), "model") == {"object": 1}
    assert [node["type"] for node in writer.objects] == ["JitterOrbit", "OrbitAverage"]
    json.dumps(writer.objects, allow_nan=False)


class HomeMade(gpytorch.kernels.RBFKernel):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (FeatureMap(torch.sin), "value.inner: FeatureMap evaluates a function of your own"),
        (OrbitAverage(ModuleOrbit(torch.nn.Linear(2, 2), 2)), "value.inner.orbit: ModuleOrbit moves inputs"),
        (HomeMade(), "value.inner is a HomeMade, which cannot be stored"),
        (gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])), "batch shape"),
        (np.array([1 + 2j]), "array of complex128"),
        (torch.ones(2, dtype=torch.complex64), "complex64"),
        (len, "builtin_function_or_method"),
        ({(1, 2): 2}, "is a dict"),
    ],
)
def test_what_cannot_be_stored_is_named(value: object, message: str):
    with pytest.raises(StorageError, match=message):
        Writer().value({"inner": value}, "value")
