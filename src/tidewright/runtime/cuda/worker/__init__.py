"""The process in which the models of all clients of a CUDA device run: one context, for streams of other processes share none."""
