"""Whether NVIDIA's Multi-Process Service runs here: a control daemon listens in its folder."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

CONTROL_S = 2.0
"""So long a control daemon may take to accept a connection."""
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPES = "/tmp/nvidia-mps"
"""NVIDIA MPS documentation, CUDA_MPS_PIPE_DIRECTORY: where daemon and clients meet unless they are given another folder."""


def pipes_of(environment: Mapping[str, str]) -> Path:
    """The folder of the control daemon that a program with these variables would use."""
    return Path(environment.get(PIPES) or DEFAULT_PIPES)


def answers(control: Path) -> bool:
    """Whether a process reads the socket or named pipe: a killed daemon leaves it behind."""
    try:
        if stat.S_ISSOCK(control.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as found:
                found.settimeout(CONTROL_S)
                found.connect(str(control))
        else:
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        # Of another type (unix(7)): some process has it open, which a socket that was left behind is not by anyone.
        return error.errno == errno.EPROTOTYPE
    return True
