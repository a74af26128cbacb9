"""plan: the words of decision. Moves, plans, requests, reasons, and the protocol every planner speaks.

Refuses to know how a decision is reached and what becomes of it.
"""

MAY_IMPORT = ("base", "model")
