"""
Do 90 % intervals hold 90 %?
============================

An interval is worth something if it holds as many new targets as it says. Disease progression of 442 patients
(scikit-learn's diabetes data), 8 random splits: intervals of three widths, and how many of the new patients
they hold.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import ShuffleSplit

from orbitwise import InvariantGPRegressor

X, y = load_diabetes(return_X_y=True)
levels = (0.5, 0.8, 0.95)
held = {level: [] for level in levels}
splits = ShuffleSplit(n_splits=8, train_size=200, random_state=0)
for train, new in splits.split(X):
    model = InvariantGPRegressor().fit(X[train], y[train])
    for level in levels:
        low, high = model.predict_quantiles(X[new], [(1 - level) / 2, (1 + level) / 2]).T
        held[level].append(np.mean((low <= y[new]) & (y[new] <= high)))

for level, shares in held.items():
    print(f"{100 * level:.0f} % intervals hold {100 * np.mean(shares):.1f} % of new patients")

# %%
figure, axis = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axis.errorbar(
    levels, [np.mean(held[level]) for level in levels], [np.std(held[level]) for level in levels], fmt="o"
)
axis.plot([0.4, 1], [0.4, 1], color="grey", linestyle=":")
axis.set(xlabel="asked for", ylabel="share of new targets inside")

# %%
assert all(abs(np.mean(shares) - level) < 0.06 for level, shares in held.items())
plt.show()
