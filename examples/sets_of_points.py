"""
Sets: the order of points means nothing
=======================================

Each row is a set of four points. Their order is an accident of how they were written down. A model that knows
it needs fewer rows, and predicts the same whatever the order. The area of the convex hull is to be learned.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import ConvexHull

from orbitwise import InvariantGPRegressor

random = np.random.default_rng(0)
sets = random.uniform(-1, 1, size=(550, 4, 2))
areas = np.array([ConvexHull(points).volume for points in sets])
train, new = slice(0, 150), slice(150, None)

errors, models = {}, {}
for name in ("none", "cloud:permutation"):
    models[name] = InvariantGPRegressor(invariance=name).fit(sets[train], areas[train])
    errors[name] = np.sqrt(np.mean((models[name].predict(sets[new]) - areas[new]) ** 2))
    print(f"{name:18s} log evidence {models[name].log_evidence_:6.1f}   error {errors[name]:.3f}")
print(f"standard deviation of the areas {areas[new].std():.3f}")

# %%
# Any order, one prediction
# -------------------------

shuffled = sets[new][:, random.permutation(4)]
change = {
    name: np.abs(model.predict(shuffled) - model.predict(sets[new])).max() for name, model in models.items()
}
print("largest change when points change places:", {name: round(value, 6) for name, value in change.items()})

figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained", sharex=True, sharey=True)
for axis, (name, model) in zip(axes, models.items(), strict=True):
    axis.plot(areas[new], model.predict(sets[new]), ".", markersize=4)
    axis.axline((0, 0), slope=1, color="grey", linestyle=":")
    axis.set(title=name, xlabel="area", ylabel="predicted")

# %%
assert models["cloud:permutation"].log_evidence_ > models["none"].log_evidence_
assert errors["cloud:permutation"] < errors["none"]
assert change["cloud:permutation"] < 1e-6 < change["none"]
plt.show()
