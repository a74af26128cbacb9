"""placement: where. Packs a job on a board, finds whom to send away for it, and says why it does not fit.

Refuses to know who deserves to run: priorities arrive as costs and eligibility.
"""

MAY_IMPORT = ("base", "model", "plan", "estimate")
