"""
Keep a model, without its data and without pickle
=================================================

A saved model is one file of arrays and JSON. It predicts the same, bit for bit, says what it is before it is
loaded, and reading it runs no code.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import orbitwise
from orbitwise import InvariantGPClassifier
from orbitwise.storage import describe

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8)
model = InvariantGPClassifier(invariance="flip").fit(images[:100], labels[:100])

# %%
# Save, look, load
# ----------------

file = Path(tempfile.mkdtemp()) / "digits.orbitwise"
orbitwise.save(model, file)
about = describe(file)
print(f"{about['estimator']}, images of {about['image_shape']}, {file.stat().st_size / 1024:.0f} KiB")

again = orbitwise.load(file)
assert np.array_equal(again.predict_proba(images[100:]), model.predict_proba(images[100:]))

# %%
# A damaged file is refused, not half read
# ----------------------------------------

file.write_bytes(file.read_bytes()[:-100])
try:
    orbitwise.load(file)
except orbitwise.storage.StorageError as error:
    refused = str(error)
print("refused:", refused.replace(str(file.parent), "…"))
assert "digits.orbitwise" in refused
