"""cli.jobs: commands on jobs, and what several of them share: acting on each job, following, waiting for a move."""
