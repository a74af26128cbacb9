"""Constants of the device model: estimates from the literature or from first principles. None was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Nanoseconds, and what each stands for. Defaults: a Hopper GPU driven from one polling process."""

    graph_launch_ns: int = 8_000
    """From the host's call to the first node: a ring poll and one graph launch."""
    node_start_ns: int = 1_200
    """From the end of a kernel to the first CTA of the next node."""
    drain_node_ns: int = 1_200
    """A gated node whose CTAs all return at once: skipped on resume, or closed."""
    flag_ns: int = 2_000
    """From raising the flag to the first CTA that sees it."""
    reset_ns: int = 40_000
    """REEF's reset on its own device: clearing queues and killing wavefronts, which NVIDIA's public interfaces do not offer."""
    throttle_ns: int = 3_000
    """What the host adds to every kernel when it launches them a few at a time."""
    device_queue: int = 2
    """Kernels that REEF lets into a best-effort device queue (``be_stream_device_queue_cap``)."""
