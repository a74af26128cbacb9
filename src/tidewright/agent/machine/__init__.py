"""The agent's decisions, without I/O: events in, actions out.

``NodeMachine.handle(now, event)`` is the only way in. It answers with actions in the order in which they are to be carried
out; ``agent.supervisor`` does that on a real node, ``tests/simulation`` in a simulated one. Nothing here waits, asks for
the time, or touches a file, a process or a socket (``tests/rooms/test_machines.py``).
"""
