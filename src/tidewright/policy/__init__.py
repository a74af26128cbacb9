"""policy: who runs, with how much. Each file is one published idea that states its wants; a composer makes the plan.

Refuses to know how devices are packed (placement), what moves cost (estimate) and how they are carried out (engine).
"""

MAY_IMPORT = ("base", "model", "plan", "estimate", "placement")
