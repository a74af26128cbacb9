"""Batching policies, one published idea per file: how large the next batch is and when it may start."""
