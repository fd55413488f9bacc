"""Random orders of points or columns, where all orders are too many to list."""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor

from orbitwise.orbits.nodes import Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit


@final
class OrderOrbit(DrawnOrbit):
    """The blocks of a row in random orders, all equally likely.

    For up to about seven blocks, `FiniteOrbit(block_permutations(num_blocks, block_size))` averages over all
    orders. Their number grows as a factorial, so here they are drawn. The blocks are sorted first, by their
    first entries, then by their second ones and so on. So an average over fixed draws is the same for every
    order of the blocks, although it is an average over some orders only.

    Parameters
    ----------
    num_blocks : int
        The number of points, or of columns.
    block_size : int, default=1
        The number of consecutive entries that move together, such as the coordinates of a point.
    num_samples, num_groups, draws
        See `DrawnOrbit`.

    Examples
    --------
    >>> import torch
    >>> from orbitwise.orbits import OrderOrbit
    >>> points = OrderOrbit(20, 3).points(torch.rand(1, 60)).points
    >>> points.shape
    torch.Size([1, 32, 60])
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 1,
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if num_blocks < 1 or block_size < 1:
            raise ValueError("An order needs at least one block of at least one entry.")
        self.num_blocks, self.block_size = num_blocks, block_size

    @property
    def randomness(self) -> Noise:
        return Noise((("uniform", self.num_blocks),))

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        width = self.num_blocks * self.block_size
        if x.shape[-1] != width:
            raise ValueError(
                f"{self.num_blocks} blocks of {self.block_size} entries have {width} entries, but the inputs "
                f"have width {x.shape[-1]}."
            )
        # the ranks of independent uniform numbers are an order, and all orders are equally likely
        ranks = noise.argsort(-1)[..., None].expand(-1, -1, -1, self.block_size)
        blocks = self._sorted(x)[:, None].expand(-1, noise.shape[1], -1, -1)
        return blocks.gather(2, ranks.expand(len(x), -1, -1, -1)).flatten(2)

    def _sorted(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n b e"]:
        """The blocks of every row, sorted by their entries."""
        blocks = x.reshape(len(x), self.num_blocks, self.block_size)
        for entry in range(self.block_size - 1, -1, -1):
            # the last sort is by the first entry, and ties keep the order of the later ones
            order = blocks[..., entry].argsort(dim=1, stable=True)
            blocks = blocks.gather(1, order[..., None].expand_as(blocks))
        return blocks
