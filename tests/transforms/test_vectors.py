import math

import pytest
import torch
from scipy.spatial.transform import Rotation as ScipyRotation

from orbitwise.transforms import LinearMaps, Rotation, Scaling, Translation, turns
from tests.contracts.annotations import unchecked
from tests.contracts.transform_contract import ContinuousContract, DiscreteContract, inputs

REFLECTION = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
STRETCH = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
IDENTITY = torch.eye(2, dtype=torch.float64)


class TestTranslation(ContinuousContract):
    @pytest.fixture(params=[(2, 2), (3, 6)], ids=str)
    def case(self, request):
        num_dimensions, width = request.param
        return Translation(num_dimensions), width

    def test_by_hand(self):
        x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        moved = Translation(2)(x, torch.tensor([[[10.0, 20.0], [0.0, -1.0]]]))
        assert moved.tolist() == [[[11, 22, 13, 24], [1, 1, 3, 3]]]

    def test_is_not_isometric_because_norms_change(self):
        assert not Translation(2).isometric


class TestScaling(ContinuousContract):
    @pytest.fixture(params=[2, 3], ids=str)
    def case(self, request):
        return Scaling(request.param), 6

    def test_by_hand(self):
        x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        moved = Scaling(2)(x, torch.tensor([[[math.log(2), math.log(3)]]]))
        torch.testing.assert_close(moved, torch.tensor([[[2.0, 6.0, 6.0, 12.0]]]))


class TestScalingOfAllCoordinates(ContinuousContract):
    narrower = None

    @pytest.fixture
    def case(self):
        return Scaling(), 3

    def test_by_hand(self):
        x = torch.tensor([[1.0, 2.0, 3.0]])
        torch.testing.assert_close(Scaling()(x, torch.tensor([[[math.log(2)]]]))[:, 0], 2 * x)


class TestRotation(ContinuousContract):
    @pytest.fixture(params=[(2, 2), (2, 6), (3, 3), (3, 9)], ids=str)
    def case(self, request):
        num_dimensions, width = request.param
        return Rotation(num_dimensions), width

    def test_a_quarter_turn_is_counter_clockwise(self):
        moved = Rotation(2)(torch.tensor([[1.0, 0.0, 0.0, 2.0]]), torch.tensor([[[math.pi / 2]]]))
        torch.testing.assert_close(moved, torch.tensor([[[0.0, 1.0, -2.0, 0.0]]]), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("size", [0.0, 1e-9, 0.3, 3.0, 10.0])
    def test_rotation_vectors_are_those_of_scipy(self, size: float):
        vector = size * torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
        cloud = inputs(9, rows=1)
        expected = ScipyRotation.from_rotvec(vector.numpy()).apply(cloud.reshape(3, 3).numpy())
        moved = Rotation(3)(cloud, vector[None, None])
        torch.testing.assert_close(moved.reshape(3, 3), torch.from_numpy(expected), rtol=0, atol=1e-12)

    def test_the_tangent_in_three_dimensions_is_the_cross_product(self):
        x = inputs(3)
        crosses = torch.linalg.cross(
            torch.eye(3, dtype=torch.float64).expand(3, 3, 3), x[:, None].expand(3, 3, 3)
        )
        torch.testing.assert_close(Rotation(3).tangent(x), crosses)


class TestLinearMaps(DiscreteContract):
    @pytest.fixture(params=[[IDENTITY, REFLECTION], [IDENTITY, STRETCH, REFLECTION]], ids=["group", "list"])
    def case(self, request):
        matrices = torch.stack(request.param)
        return LinearMaps(matrices, is_group=len(matrices) == 2), 2

    def test_maps_columns_not_rows(self):
        shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]])
        moved = LinearMaps(torch.stack([torch.eye(2), shear]))(
            torch.tensor([[1.0, 2.0]]), torch.ones(1, 1, 1)
        )
        assert moved.tolist() == [[[7.0, 2.0]]]

    def test_isometric_is_found_out(self):
        assert LinearMaps(torch.stack([IDENTITY, REFLECTION])).isometric
        assert LinearMaps(torch.stack([IDENTITY, REFLECTION]).float()).isometric
        assert not LinearMaps(torch.stack([IDENTITY, STRETCH])).isometric


class TestTurns(DiscreteContract):
    @pytest.fixture(params=[1, 2, 5, 12])
    def case(self, request):
        return turns(request.param), 2

    def test_are_rotations(self):
        x = inputs(2)
        angles = 2 * math.pi * torch.arange(5, dtype=torch.float64)[:, None].expand(3, -1, -1) / 5
        torch.testing.assert_close(turns(5).all_elements(x), Rotation(2)(x, angles))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Translation(0), "at least 1, not 0"),
        (lambda: Scaling(-1), "at least 1, not -1"),
        (lambda: Rotation(4), "2 or 3 dimensions, not 4"),
        (lambda: turns(0), "at least 1, not 0"),
        (lambda: LinearMaps(torch.eye(2)), r"\[e, d, d\], not shape \(2, 2\)"),
        (lambda: LinearMaps(torch.ones(2, 2, 3)), r"\[e, d, d\], not shape \(2, 2, 3\)"),
        (lambda: LinearMaps(torch.ones(0, 2, 2)), "square"),
        (lambda: LinearMaps(torch.eye(2, dtype=torch.long)[None]), "floating-point"),
        (lambda: LinearMaps(torch.stack([torch.eye(2), torch.full((2, 2), torch.inf)])), "finite"),
        (lambda: LinearMaps(REFLECTION[None]), "identity"),
    ],
)
def test_bad_arguments(make, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        make()
