"""
Digits that lie anywhere, and a kernel of infinitely many convolutions
======================================================================

A convolutional network with random weights and ever more channels becomes a Gaussian process, whose kernel
compares images patch by patch. With pooling at its end it does not matter where a pattern lies. Here digits
are shifted at random around a torus, so that pixels say little. The kernel needs no training, and the evidence of the
training labels tells that it suits them before any test.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from orbitwise import InvariantGPClassifier
from orbitwise.kernels import WideConvolutionKernel

random = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
order = random.permutation(len(images))
train, new = order[:120], order[120:320]
shifts = random.integers(0, 8, (len(images), 2))
images = np.stack(
    [np.roll(image, shift, (0, 1)) for image, shift in zip(images.reshape(-1, 8, 8) / 16, shifts, strict=True)]
)

# %%
# Three priors for the same labels
# --------------------------------
# Of distances of pixels, and of convolutional networks that end with all positions or with their average.
# Images keep their shape.

kernels = {
    "RBF": None,
    "wide convolutions": WideConvolutionKernel((8, 8), padding="circular"),
    "wide convolutions, pooled": WideConvolutionKernel((8, 8), padding="circular", pooling=True),
}
evidence, errors = {}, {}
for name, kernel in kernels.items():
    model = InvariantGPClassifier(kernel, max_iterations=12).fit(images[train], labels[train])
    evidence[name] = model.log_evidence_
    errors[name] = 100 * np.mean(model.predict(images[new]) != labels[new])
    print(f"{name:26s} log evidence {evidence[name]:7.1f}   error {errors[name]:4.1f} %")

figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
axis.scatter(evidence.values(), errors.values())
for name in kernels:
    axis.annotate(name, (evidence[name], errors[name]), textcoords="offset points", xytext=(6, 6))
axis.set(xlabel="log evidence of 120 training labels (nats)", ylabel="error on new images (%)")
axis.margins(x=0.3, y=0.2)

# %%
assert evidence["wide convolutions, pooled"] > evidence["RBF"] + 20
assert errors["wide convolutions, pooled"] < 0.7 * errors["RBF"]
plt.show()
