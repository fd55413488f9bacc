"""Shares of classes among points without a label, which should not contradict the labels.

If labels are drawn at random, k of n labels of a class say that its share has the posterior
Beta(k + 1, n - k + C - 1), from a uniform prior over the shares of C classes. A machine learned from few and
unequal labels often predicts shares far outside of it. Class mass normalisation (Zhu, Ghahramani and Lafferty
2003) demands the share of the labels itself, which is noisy. Here offsets are no greater than the posterior
demands.
"""

import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

TAIL = 0.16
"""The probability below and above the shares that are accepted: they reach one standard deviation."""
MOST_STEPS = 20
"""Per class."""


def accepted_shares(totals: Float[Tensor, " c"]) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """The least and the greatest share of every class, given the total weight of its labels."""
    counts = totals.numpy()
    others = counts.sum() - counts + len(counts) - 1
    bounds = [scipy.special.betaincinv(counts + 1, others, tail) for tail in (TAIL, 1 - TAIL)]
    return torch.from_numpy(bounds[0]), torch.from_numpy(bounds[1])


def offsets_of_classes(
    scores: Float[Tensor, "u c"], codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " c"]:
    """What to add to the scores of unlabelled points, so that the shares of their classes are accepted.

    One class after the other, the worst first, gets the offset that brings its share to the nearest bound.
    """
    count = scores.shape[1]
    low, high = accepted_shares(weights.new_zeros(count).index_add(0, codes, weights))
    offsets = scores.new_zeros(count)
    for _ in range(MOST_STEPS * count):
        moved = scores + offsets
        shares = torch.bincount(moved.argmax(1), minlength=count) / len(scores)
        excess = torch.maximum(low - shares, shares - high)
        worst = int(excess.argmax())
        if excess[worst] * len(scores) < 1:  # less than one point
            break
        share = shares[worst].clamp(low[worst], high[worst])
        wanted = min(max(round(share.item() * len(scores)), 1), len(scores) - 1)
        rivals = moved.clone()
        rivals[:, worst] = -torch.inf
        # the class wins where its offset exceeds the lead of the best other class
        leads = (rivals.amax(1) - scores[:, worst]).sort().values
        offsets[worst] = (leads[wanted - 1] + leads[wanted]) / 2
    return offsets - offsets.mean()
