"""Structures that no writer wrote: each is refused, none builds anything absurd."""

from typing import Any

import numpy as np
import pytest
import torch

from orbitwise.functionals import Combination, Evaluation
from orbitwise.orbits import PatchOrbit, WeightedOrbit
from orbitwise.storage import StorageError
from orbitwise.storage.objects import Reader, Writer


def node(kind: str, state: Any = None, **arguments: Any) -> dict[str, Any]:
    return {"type": kind, "arguments": arguments, "attributes": {}, "state": state or {}, "learned": []}


def draws(**arguments: Any) -> dict[str, Any]:
    return {"num_samples": 4, "num_groups": 2, "draws": "random", **arguments}


def test_objects_are_built_in_order():
    sum_ = node("Combination", parts=[{"object": 0}, {"object": 0}], factors=[1.0, -1.0])
    built = Reader([node("Evaluation"), sum_]).value({"object": 1})
    assert isinstance(built, Combination)
    assert all(isinstance(part, Evaluation) for part in built.parts)


@pytest.mark.parametrize(
    "objects",
    [
        None,
        "objects",
        [None],
        [{}],
        [node("Unknown")],
        [node("os.system", command="true")],
        [node("ModuleOrbit")],
        [node("FeatureMap")],
        [{**node("Evaluation"), "type": ["Evaluation"]}],
        [{**node("Evaluation"), "more": 1}],
        [node("Evaluation", other=1)],
        [node("Evaluation", state={"weight": 1})],
        [node("OrbitAverage", orbit={"object": 0})],
        [node("OrbitAverage", orbit={"object": -1})],
        [node("Evaluation"), node("OrbitAverage", orbit={"object": 0})],
        [node("Combination", parts=[], factors=[])],
        [node("Combination", parts=[3], factors=[1.0])],
        [node("AffineWarp", image_shape={"tuple": [10**6, 10**6]})],
        [node("AffineWarp", image_shape={"tuple": [-4, 4]})],
        [node("AffineWarp", image_shape=4)],
        [node("AffineWarp")],
        [node("Trainer")],
        [node("Kernel")],
        [node("AffineWarp", image_shape={"tuple": ["4", 4]})],
        [node("TimeWarp", signal_shape={"tuple": [1, 10**12]}, boundary="zero")],
        [node("TimeWarp", signal_shape={"tuple": [1, 4]}, boundary="?")],
        [node("Translation", num_dimensions=10**12)],
        [node("JitterOrbit", **draws(num_features=10**12, separate=True))],
        [node("JitterOrbit", **draws(num_features=True, separate=True))],
        [node("JitterOrbit", **draws(num_features=2, separate=True, num_samples=10**15))],
        [node("Interval", transform="os.system", inverse=None)],
        [node("Gaussian", num_outputs=10**12)],
        [node("Evaluation")] * 30_000,
    ],
    ids=lambda objects: str(objects)[-60:] if len(str(objects)) < 1000 else "many",
)
def test_hostile_objects_are_refused(objects: Any):
    with pytest.raises(StorageError):
        Reader(objects)


def test_parts_that_multiply_are_refused():
    """Forty objects that would be 2⁴⁰ parts."""
    objects = [node("Evaluation")]
    for place in range(40):
        objects += [
            node("Combination", parts=[{"object": 2 * place}], factors=[1.0]),
            node("Combination", parts=[{"object": 2 * place + 1}] * 2, factors=[1.0, 1.0]),
        ]
    with pytest.raises(StorageError, match="nested too deeply"):
        Reader(objects)


def test_objects_nested_deeply_are_refused():
    objects = [node("Evaluation")]
    objects += [node("Combination", parts=[{"object": i}], factors=[1.0]) for i in range(100)]
    with pytest.raises(StorageError, match="nested too deeply"):
        Reader(objects)


def test_tensors_of_other_shapes_or_types_are_refused():
    writer = Writer()
    writer.value(WeightedOrbit(PatchOrbit((2, 2), (1, 1))), "orbit")
    assert len(Reader(writer.objects, writer.arrays).arrays) == 1
    for wrong in (np.zeros(5), np.zeros(4, dtype=np.int64)):
        objects = [dict(each) for each in writer.objects]
        layout = {"name": "tensor_0", "shape": [len(wrong)], "order": [0], "shared": []}
        objects[1]["state"] = {"raw": {"tensor": layout}}
        with pytest.raises(StorageError, match="raw of WeightedOrbit is wrong"):
            Reader(objects, {"tensor_0": wrong})


@pytest.mark.parametrize(
    "given",
    [
        {"object": 0},
        {"object": True},
        {"unknown": 1},
        {},
        {"a": 1, "b": 2},
        {"float": "1"},
        {"float": "__import__('os')"},
        {"tuple": 3},
        {"mapping": []},
        {"pairs": {}},
        {"pairs": [1]},
        {"pairs": [[1, 2, 3]]},
        {"pairs": [[[1], 2]]},
        {"tensor": {"name": "none"}},
        {"tensor": None},
        {"array": {"name": ["a"]}},
        {"array": {"width": 10**12, "values": ["a"]}},
        {"array": {"width": 1, "values": ["ab"]}},
        {"array": {"width": "1", "values": ["a"]}},
        {"array": {"width": 1, "values": [1]}},
        {"array": {"width": None, "values": [[1, 2], [3, 4]]}},
        float("nan"),
    ],
)
def test_values_that_stand_for_nothing_are_refused(given: Any):
    with pytest.raises(StorageError):
        Reader([], {}).value(given)


def test_values_nested_deeply_are_refused():
    given: Any = 1
    for _ in range(100):
        given = [given]
    with pytest.raises(StorageError, match="nested too deeply"):
        Reader().value(given)


def test_learned_parameters_are_told():
    noise = {"tensor": {"name": "a", "shape": [1], "order": [0], "shared": []}}
    objects = [node("Gaussian", {"raw_noise": noise}, num_outputs=0)]
    arrays = {"a": np.array([-1.5])}
    fixed = Reader(objects, arrays).value({"object": 0})
    assert not fixed.raw_noise.requires_grad
    assert fixed.raw_noise.dtype == torch.float64
    objects[0]["learned"] = ["raw_noise"]
    assert Reader(objects, arrays).value({"object": 0}).raw_noise.requires_grad


def test_numbers_that_rows_share_count_as_often_as_they_are_there():
    """Sixty tensors of a million entries, each of a single number."""
    arrays = {f"one_{place}": np.ones((1, 1)) for place in range(60)}
    reader = Reader([], arrays)
    layout = {"shape": [2**20, 1], "order": [0, 1], "shared": [0]}
    with pytest.raises(StorageError, match="far more memory than what it holds"):
        reader.value([{"tensor": {"name": name, **layout}} for name in arrays])


def test_arrays_and_tensors_that_are_named_often_are_there_once():
    reader = Reader([], {"large": np.arange(2.0**20)})
    layout = {"name": "large", "shape": [2**20], "order": [0], "shared": []}
    for given in ({"array": {"name": "large"}}, {"tensor": layout}):
        values = reader.value([given] * 1000)
        assert all(each is values[0] for each in values)
    with pytest.raises(StorageError, match="two layouts"):
        reader.value({"tensor": {**layout, "on_device": True}})


def test_sizes_of_all_objects_share_one_budget():
    """Each is small enough, all of them are not."""
    one = node("Translation", num_dimensions=2**18)
    Reader([one] * 3)
    with pytest.raises(StorageError, match="far more memory than what it holds"):
        Reader([one] * 5)


@pytest.mark.parametrize(
    "wrong",
    [
        node("WideNetworkKernel", depth=10**6),
        node("PolynomialBasis", order=10**6),
        node("JitterOrbit", **draws(num_features=2, separate=True, num_samples=10**6)),
        node("LocalAverage", width=0.0),
        node("LocalAverage", width={"float": "inf"}),
        node("LocalAverage", width={"float": "nan"}),
        node("LocalAverage", width=1e300),
        node("TangentDeformation", image_shape={"tuple": [4, 4]}, tangent_width=1e12, clip=None),
        node("PatchOrbit", image_shape={"tuple": [4, 4]}, patch_shape={"tuple": [0, 2]}, stride=1),
    ],
    ids=lambda wrong: wrong["type"],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]):
    if wrong["type"] == "WideNetworkKernel":
        names = ("activation", "residual", "weight_variance", "bias_variance", "active_dims")
        values = ("relu", False, 1.0, 0.1, None)
        wrong["arguments"] |= dict(zip(names, values, strict=True))
        for name in ("weight_variance", "bias_variance"):
            wrong["arguments"] |= {f"{name}_constraint": None, f"{name}_prior": None}
    with pytest.raises(StorageError, match="out of range"):
        Reader([wrong])


def test_numbers_are_not_used_without_end():
    """Four hundred objects of one tensor of a megabyte."""
    layout = {"tensor": {"name": "large", "shape": [2, 2**16], "order": [0, 1], "shared": []}}
    one = node("FiniteDifference", {"direction": layout}, direction=layout, step=0.1, order=1)
    arrays = {"large": np.ones((2, 2**16))}
    assert len(arrays["large"].tobytes()) == 2**20
    Reader([one] * 20, arrays)
    with pytest.raises(StorageError, match="refers to the same numbers far too often"):
        Reader([one] * 400, arrays)


def test_weights_of_many_elements_cost_their_square():
    layout = {"tensor": {"name": "weights", "shape": [5000], "order": [0], "shared": []}}
    given = {"transform": {"object": 0}, "elements": None, "weights": layout}
    orbit = node("FiniteOrbit", **given, num_samples=None, num_groups=2)
    objects = [node("Translation", num_dimensions=1), orbit]
    with pytest.raises(StorageError, match="far more memory than what it holds"):
        Reader(objects, {"weights": np.ones(5000)})
