"""engine: the book. Events in, commands out, and nothing else.

``Engine.step(now, events)`` is the only writer of the book. It refuses to know the clock, the disk, the network and
which policy is in force: time is an argument, a decision is an event.
"""

MAY_IMPORT = ("base", "model", "plan", "estimate", "placement")
