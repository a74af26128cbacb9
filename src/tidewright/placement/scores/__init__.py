"""Scores of nodes for requests of parts of devices, one published idea per file, and the loop that places by them."""
