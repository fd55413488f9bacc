import math

import torch
from torch import nn

from orbitwise.estimators.error_bars import learned_errors, parameter_errors


def test_a_gaussian_gives_back_its_deviations():
    covariance = torch.tensor([[0.5, 0.1], [0.1, 0.2]], dtype=torch.float64)
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    precision = torch.linalg.inv(covariance)
    errors = parameter_errors(lambda: -0.5 * parameter @ precision @ parameter, [parameter])
    torch.testing.assert_close(errors[0], covariance.diagonal().sqrt())
    assert torch.equal(parameter.data, torch.zeros(2, dtype=torch.float64))


def test_a_flat_direction_has_an_infinite_error_and_leaves_the_others_alone():
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    errors = parameter_errors(lambda: -2 * parameter[0] ** 2 + 0 * parameter[1], [parameter])
    torch.testing.assert_close(errors[0][0], torch.tensor(0.5, dtype=torch.float64))
    assert math.isinf(float(errors[0][1]))


def test_errors_pass_through_the_map_to_ranges():
    parameter = nn.Parameter(torch.tensor([math.log(2.0)], dtype=torch.float64))

    def learned():
        width = float(parameter.detach().exp())
        return {"angle": (-width, width), "fixed": (0.0, 1.0)}

    errors = learned_errors(learned, [parameter], [torch.tensor([0.1], dtype=torch.float64)])
    assert abs(errors["angle"] - 2 * math.sinh(0.1)) < 1e-9
    assert errors["fixed"] == 0
