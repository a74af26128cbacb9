"""drive: one step of the engine with its journal record, replay of a journal, and counterfactuals on a forked book."""

MAY_IMPORT = ("base", "model", "plan", "engine")
