"""
Measurements that went wrong
============================

One value in ten is off by much. With Gaussian noise a Gaussian process follows them, or takes everything for
noise. Student-t noise has heavy tails: values that are far off count little.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import InvariantGPRegressor

random = np.random.default_rng(0)
x = np.sort(random.uniform(0, 10, 100))[:, None]
truth = np.sin(x[:, 0])
y = truth + 0.1 * random.normal(size=100)
wrong = random.choice(100, 10, replace=False)
y[wrong] += random.choice([-3, 3], size=10)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
errors = {}
for axis, name in zip(axes, ("gaussian", "student_t"), strict=True):
    model = InvariantGPRegressor(likelihood=name).fit(x, y)
    mean, deviation = model.predict(x, return_std=True, include_noise=False)
    errors[name] = np.sqrt(np.mean((mean - truth) ** 2))
    print(f"{name:10s} error of the function {errors[name]:.3f}   log evidence {model.log_evidence_:.0f}")
    axis.fill_between(x[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.25)
    axis.plot(x[:, 0], mean)
    axis.plot(x[:, 0], y, "k.", markersize=4)
    axis.plot(x[wrong, 0], y[wrong], "rx")
    axis.set_title(name)

# %%
# The evidence prefers the likelihood that describes the noise, although that of Student-t noise is only a
# lower bound.

assert errors["student_t"] < errors["gaussian"] / 3
plt.show()
