"""fabric: reaching nodes. Five verbs (nodes, watch, call, copy, close) over one machine or many.

Refuses to know what the calls mean, who schedules, and what is retried for how long.
"""

MAY_IMPORT = ("base", "model", "wire")
