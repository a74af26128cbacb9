"""one_pool: a recorded day of a service beside training, in one pool and in a static split of the same devices."""
