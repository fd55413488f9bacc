"""
When evidence cannot tell, and what would
=========================================

Two invariances can explain a few rows equally well. `compare` then says that it is a tie, and keeps the
simplest candidate. More rows decide. Here the truth depends on the sum of the columns' squares, so their
signs and their order are both without meaning; and a permutation alone says less than that.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import compare


def draw(count):
    random = np.random.default_rng(3)
    x = random.normal(size=(count, 2))
    return x, np.cos((x**2).sum(axis=1)) + 0.3 * random.normal(size=count)


candidates = ("permutation", "negation", "sign")
sizes, behind, tied = (8, 16, 32, 64, 128), {name: [] for name in candidates}, {}
for count in sizes:
    comparison = compare(*draw(count), candidates)
    evidence = {each.name: each.log_evidence for each in comparison.candidates}
    for name in candidates:
        behind[name].append(evidence[name] - evidence["sign"])
    tied[count] = bool(comparison.tied)
    print(f"{count:4d} rows: {comparison.verdict}")

# %%
figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
for name in candidates:
    axis.plot(sizes, behind[name], "o-", label=name)
axis.axhspan(-np.log(3), np.log(3), color="grey", alpha=0.25, label="a tie")
axis.set(xscale="log", xlabel="rows", ylabel="log evidence beyond that of “sign”, nats")
axis.set_xticks(sizes, sizes)
axis.legend(frameon=False)

# %%
assert tied[8]
assert not tied[128]
assert behind["permutation"][-1] < -10
plt.show()
