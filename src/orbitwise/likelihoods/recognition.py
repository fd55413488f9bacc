"""The recognition network of LIM 4.5: tilts c(x, y) of the Pólya-Gamma bound from inputs and targets.

Any c gives a valid bound, so the network is trained with the bound. Its tilts do not depend on the current
draws, so the bound stays unbiased.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

START = 1.0
"""The tilt of every datum before training."""


@final
class Recognition(nn.Module):
    """c(x, y) = softplus(W₂ tanh(W₁[x, y] + b₁) + b₂) for every output, of inputs standardised by `x`."""

    centre: Tensor
    spread: Tensor

    def __init__(
        self, x: Float[Tensor, "n d"], num_outputs: int, generator: torch.Generator, num_hidden: int = 32
    ) -> None:
        super().__init__()
        x = x.detach().double()
        spread = x.std(0, correction=0)
        self.register_buffer("centre", x.mean(0))
        # constant coordinates are left out; the mean square of a row of the others is about 1
        scale = torch.where(spread > 1e-12, spread * spread.numel() ** 0.5, torch.inf)
        self.register_buffer("spread", scale)
        width = x.shape[-1] + num_outputs
        first = torch.randn(
            width, num_hidden, generator=generator, device=generator.device, dtype=torch.float64
        )
        self.first = nn.Parameter(first.to(x.device))
        self.first_bias = nn.Parameter(x.new_zeros(num_hidden))
        self.second = nn.Parameter(x.new_zeros(num_hidden, num_outputs))
        # softplus⁻¹(c) = log(eᶜ - 1)
        self.second_bias = nn.Parameter(x.new_full((num_outputs,), START).expm1().log())

    def forward(self, x: Float[Tensor, "n d"], targets: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        features = torch.cat([(x.double() - self.centre) / self.spread, targets.double()], dim=-1)
        hidden = torch.tanh(features @ self.first + self.first_bias)
        return nn.functional.softplus(hidden @ self.second + self.second_bias)
