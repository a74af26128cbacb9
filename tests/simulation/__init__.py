"""Engine, controller reconciliation and agents over a lossy network, in one deterministic simulation.

What decides is the product's own code: ``engine``, ``live.world`` and ``agent.machine``. What is simulated is what these cannot
decide: processes, control pages, disks, clocks and the network.
"""
