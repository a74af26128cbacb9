"""The consistent cut: the leader's state machine, the thread that runs it, and the control pages it reads."""
