"""albumentations looks for a newer version on the network when it is imported, unless told not to."""

import os

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
