"""placement: where. Packs a job on a board, finds which jobs to preempt for it, and says why it does not fit.

Does not know which jobs are entitled to run: priorities arrive as costs and eligibility.
"""

MAY_IMPORT = ("base", "model", "plan", "estimate")
