"""agent.processes: ranks as processes of this node: spec, launch, shims, logs, accounts, memory, time slices, usage."""
