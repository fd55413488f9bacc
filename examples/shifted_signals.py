"""
How far may a signal be shifted?
================================

Pulses of two shapes come at times that differ by up to six samples. Labels alone tell the model that shifts
mean nothing, and how far the shifts must reach. A range that is larger than needed costs nothing here,
because nothing but silence comes in from outside; it must not be smaller.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import InvariantGPClassifier

random = np.random.default_rng(0)
moments, REACH = np.arange(48), 6.0


def pulses(count):
    label, start = random.integers(0, 2, count), 24 + random.uniform(-REACH, REACH, count)
    time = moments - start[:, None]
    shape = np.where(label[:, None] == 0, np.exp(-np.abs(time) / 3), np.exp(-(time**2) / 18))
    return shape + 0.15 * random.normal(size=shape.shape), label


x, y = pulses(50)
new, new_labels = pulses(1000)

# %%
plain = InvariantGPClassifier().fit(x, y)
model = InvariantGPClassifier(invariance="signal:shift").fit(x, y)
low, high = model.orbit_.learned()["shift"]
for name, each in (("none", plain), ("signal:shift", model)):
    print(
        f"{name:13s} log evidence {each.log_evidence_:6.1f}   "
        f"error {100 * (1 - each.score(new, new_labels)):.1f} %"
    )
print(f"shifts of {low:.1f} to {high:.1f} samples; pulses differ by up to {2 * REACH:.0f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
for label, axis in enumerate(axes):
    row = x[y == label][:1]
    axis.plot(model.sample_orbit(row, n=6)[0].T, color="tab:blue", alpha=0.35)
    axis.plot(row[0], "k", linewidth=1)
    axis.set(title=f"class {label}: a signal and its orbit", xlabel="sample")

# %%
assert model.log_evidence_ > plain.log_evidence_ + 5
assert model.score(new, new_labels) > plain.score(new, new_labels)
assert high > REACH / 2
plt.show()
