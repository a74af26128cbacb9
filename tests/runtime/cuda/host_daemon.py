"""A runtime whose device is ``host_device``; the options of ``tidewright.runtime.daemon``."""

from __future__ import annotations

import sys
from dataclasses import replace

from tidewright.runtime.daemon.main import parser, serve, settings_of

if __name__ == "__main__":
    args = parser().parse_args(["--device", "cuda", *sys.argv[1:]])
    serve(lambda: replace(settings_of(args), device_worker=("-m", "tests.runtime.cuda.host_device")), args.requeue)
