"""compare: many simulations side by side, each in a worker process. ``sim.comparison`` says what their results mean."""
