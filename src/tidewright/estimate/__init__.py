"""estimate: predictions. How fast, how long, and what a change costs.

Refuses to know who asks and what they will decide; the same columns always give the same numbers.
"""

MAY_IMPORT = ("base", "model")
