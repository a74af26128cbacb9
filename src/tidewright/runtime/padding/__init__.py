"""padding: which best-effort kernel may run beside a real-time kernel, and on how much of the device.

REEF's rule on its own profiles, the rule for NVIDIA devices, and the measured table that has the last word. Pure: everything
is an argument. It refuses to launch anything.
"""
