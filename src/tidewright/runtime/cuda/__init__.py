"""The CUDA device of the runtime: kernels whose thread blocks (CTAs) stop at a gate and are resumed exactly once.

``control`` and ``gate`` are the protocol and its source; ``exclusion``, ``wrapper`` and ``ladder`` are pure text passes;
``compile``, ``pretend`` and ``cubin`` import PyTorch and Triton when they are called.
"""
