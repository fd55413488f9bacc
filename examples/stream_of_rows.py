"""
Rows that come in batches
=========================

`SparseGPRegressor.partial_fit` takes a batch, keeps what it says of the inducing variables, and forgets the
rows. The result does not depend on how rows are split into batches, and memory does not grow.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import SparseGPRegressor

random = np.random.default_rng(0)


def batch(count):
    x = random.uniform(-3, 3, size=(count, 1))
    return x, np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=count)


# %%
# A start, then more
# ------------------
# Kernel and noise are learned from the first rows. Later batches only sharpen what is known of g.

x, y = batch(200)
model = SparseGPRegressor(num_inducing=20, random_state=0).fit(x, y)
grid = np.linspace(-3, 3, 200)[:, None]
truth = np.sin(2 * grid[:, 0])
rows, errors, deviations = [200], [], []
for step in range(5):
    if step:
        model.partial_fit(*batch(1000))
        rows.append(rows[-1] + 1000)
    mean, deviation = model.predict(grid, return_std=True, include_noise=False)
    errors.append(np.sqrt(np.mean((mean - truth) ** 2)))
    deviations.append(np.sqrt(np.mean(deviation**2)))
    print(f"{rows[-1]:5d} rows: error {errors[-1]:.3f}, stated {deviations[-1]:.3f}")

figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axis.loglog(rows, errors, "o-", label="error of f")
axis.loglog(rows, deviations, "s--", label="deviation stated")
axis.set(xlabel="rows seen")
axis.legend(frameon=False)

# %%
assert errors[-1] < errors[0] / 1.5
assert deviations == sorted(deviations, reverse=True)
plt.show()
