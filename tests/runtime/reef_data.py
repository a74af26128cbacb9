"""Where REEF's profiles are, and the mark of tests that need them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tidewright.runtime.padding.reef_models import ProfiledModel, load_reef_model

DATA = Path(os.environ.get("TIDEWRIGHT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
PROFILES = DATA / "reef" / "profiles"
NAMES = ("alexnet", "bert", "densenet", "inception", "mobilenet", "resnet", "resnet152", "resnet18", "vgg")
needs_profiles = pytest.mark.skipif(
    not PROFILES.is_dir(), reason=f"no profiles of REEF in {PROFILES}; set TIDEWRIGHT_DATA"
)


@cache
def reef_model(name: str) -> ProfiledModel:
    return load_reef_model(PROFILES, name)
