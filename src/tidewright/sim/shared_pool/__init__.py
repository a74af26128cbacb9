"""sim.shared_pool: a trace of training beside one service, on the same devices, by the engine that runs both live."""
