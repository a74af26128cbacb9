"""engine.services: so many replicas of a job, kept running."""
