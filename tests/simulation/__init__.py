"""Engine, controller reconciliation and agents over a lossy network, in one deterministic simulation.

What decides is the product's own code: ``engine``, ``live.reconcile`` and ``agent.machine``. Simulated are
processes, control pages, disks, clocks and the network.
"""
