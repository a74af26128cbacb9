"""drive: one turn of the engine (step, journal, check), replay of a journal, and counterfactuals on a forked book."""

MAY_IMPORT = ("base", "model", "plan", "engine")
