"""How a container is kept to its share of a GPU: isolation levels from hardware partitions to a watchdog."""
