"""live.controller: the process around one book: lock, clock, run loop, ports, disk space, the local agent."""
