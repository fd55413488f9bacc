"""
Features of a network that was trained on other classes
=======================================================

Kernels compare pixels, and the pixels of two shifted images of one digit have little in common. A small
network that was trained on other classes knows which patterns matter wherever they lie. The classifier takes
it as ``features=``: the network stays as it is, the Gaussian process lives on what it gives, and 60 labels of
classes that the network has never seen are enough.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import orbitwise
from orbitwise import InvariantGPClassifier

random = np.random.default_rng(0)
small, labels = load_digits(return_X_y=True)
images = np.zeros((len(small), 14, 14), dtype=np.float32)
for image, digit in zip(images, small.reshape(-1, 8, 8) / 16, strict=True):
    top, left = random.integers(0, 7, 2)
    image[top : top + 8, left : left + 8] = digit

# %%
# A network for the digits from 0 to 5
# ------------------------------------
# Two convolutions, and the largest value of each channel in each quarter of the image.


def body() -> nn.Sequential:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 48, 3, padding=1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())


with torch.random.fork_rng():
    torch.manual_seed(0)
    network, head = body(), nn.Linear(48, 6)
    known = labels < 6
    inputs, targets = torch.from_numpy(images[known, None]), torch.from_numpy(labels[known])
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(30):
        for batch in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(network(inputs[batch])), targets[batch]).backward()
            optimizer.step()

# %%
# 60 labels of the digits from 6 to 9
# -----------------------------------

others = random.permutation(np.flatnonzero(~known))
train, new = others[:60], others[60:]
models = {
    "pixels": InvariantGPClassifier(),
    "features": InvariantGPClassifier(features=network),
}
errors = {}
for name, model in models.items():
    model.fit(images[train], labels[train])
    errors[name] = 100 * np.mean(model.predict(images[new]) != labels[new])
    print(f"{name:10s} error {errors[name]:4.1f} %   log evidence {model.log_evidence_:7.1f}")

# %%
# A model file has the weights, and no code
# -----------------------------------------
# Whoever loads it builds the network again, with any weights.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.orbitwise"
    orbitwise.save(models["features"], path)
    again = orbitwise.load(path, features=body())
assert (again.predict(images[new]) == models["features"].predict(images[new])).all()

figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
for axis, place in zip(axes, new, strict=False):
    axis.imshow(images[place], cmap="gray")
    axis.set_title(f"{again.predict(images[place][None])[0]}")
    axis.set_axis_off()

# %%
assert errors["features"] < 0.5 * errors["pixels"]
plt.show()
