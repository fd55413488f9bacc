"""The simplest learnable orbit: normal noise added to every coordinate."""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import OMITTED, Stored
from orbitwise.orbits.nodes import Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit, Widths


@final
class JitterOrbit(DrawnOrbit):
    """x + θε with ε standard normal: f is g smoothed over θ.

    All coordinates share one `width` θ, or with `separate` each learns its own. The average of an RBF kernel
    of lengthscale ℓ over such orbits is an RBF kernel of lengthscale √(ℓ² + 2θ²) and smaller variance.

    Parameters
    ----------
    num_features : int
        The width d of the rows.
    width : float, default=0.1
        The θ that learning starts from.
    separate : bool, default=False
        Whether each coordinate has its own θ.
    learnable : bool, default=True
        Whether θ is learned at all.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored({"width": OMITTED})

    def __init__(
        self,
        num_features: int,
        width: float = 0.1,
        separate: bool = False,
        learnable: bool = True,
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, not {num_features}.")
        self.num_features, self.separate = num_features, separate
        names = [f"jitter_{column}" for column in range(num_features)] if separate else ["jitter"]
        self.widths = Widths(dict.fromkeys(names, width), None if learnable else ())

    @property
    def randomness(self) -> Noise:
        return Noise((("normal", self.num_features),))

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        if x.shape[-1] != self.num_features:
            raise ValueError(
                f"This jitter was made for inputs of width {self.num_features}, but got width {x.shape[-1]}."
            )
        return x[:, None, :] + self.widths.values.to(noise) * noise
