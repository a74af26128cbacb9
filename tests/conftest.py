"""What all tests share: property tests have no deadline, for a busy machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
