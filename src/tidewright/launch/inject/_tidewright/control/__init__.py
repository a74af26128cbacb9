"""The control page of a process and the states it goes through at a cut. No torch here."""

import sys

_splice = sys.modules.get("_tidewright.splice")
if _splice is not None and not hasattr(_splice, "acquire"):
    # A process of an older image has this module by its older names, and loads those that call it only now.
    for _old, _new in (("take", "acquire"), ("give_up", "release"), ("park", "quiesce")):
        setattr(_splice, _new, getattr(_splice, _old))
