"""agent.checkpointing: images of ranks: the cut across nodes, dumps and restores, the store, copies, leases, deletion."""
