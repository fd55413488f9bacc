"""
Digits that lie anywhere, and a kernel of infinitely many convolutions
======================================================================

A convolutional network with random weights and ever more channels becomes a Gaussian process, whose kernel
compares images patch by patch. With pooling at its end it does not matter where a pattern lies. Here digits
are shifted at random around a torus, so that distances of pixels say little. The variances of weights and
biases are learned, and the evidence of the training labels tells that this kernel suits them before any test.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from orbitwise import InvariantGPClassifier
from orbitwise.kernels import WideConvolutionKernel

random = np.random.default_rng(0)
small, labels = load_digits(return_X_y=True)
images = np.empty((220, 8, 8))
for place, image in enumerate(small[:220].reshape(-1, 8, 8) / 16):
    images[place] = np.roll(image, random.integers(0, 8, 2), axis=(0, 1))
train, new = slice(0, 70), slice(70, 220)

# %%
# Two priors for the same labels
# ------------------------------
# One of distances, whose lengthscale is learned, and one of convolutions. Images keep their shape.

models = {
    "RBF": InvariantGPClassifier(),
    "wide convolutions": InvariantGPClassifier(
        WideConvolutionKernel((8, 8), depth=1, padding="circular", pooling=True)
    ),
}
evidence, errors = {}, {}
for name, model in models.items():
    model.fit(images[train], labels[train])
    evidence[name] = model.log_evidence_
    errors[name] = 100 * np.mean(model.predict(images[new]) != labels[new])
    print(f"{name:18s} log evidence {evidence[name]:7.1f}   error {errors[name]:4.1f} %")

# %%
# What both see
# -------------
# The correlation of g between the first training images, in the order of their labels.

shown = np.argsort(labels[train], kind="stable")[:60]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for axis, (name, model) in zip(axes, models.items(), strict=True):
    covariance = model.kernel_(model.model_.observations[0].x[shown]).to_dense().detach().numpy()
    deviation = np.sqrt(np.diag(covariance))
    axis.imshow(covariance / np.outer(deviation, deviation), cmap="viridis")
    axis.set_title(f"{name}: {errors[name]:.1f} % errors")
    axis.set_axis_off()

# %%
assert evidence["wide convolutions"] > evidence["RBF"] + 20
assert errors["wide convolutions"] < 0.5 * errors["RBF"]
plt.show()
