"""``python -m tidewright.runtime.cuda.worker``: started by the runtime alone."""

from ...ladder import StopLevel
from .main import main
from .models import CudaDevice
from .throttled import ThrottledDevice


def open_device(stop: StopLevel, shares: tuple[int, ...]) -> CudaDevice:
    """The device of this process. Raises UsageError."""
    return ThrottledDevice(shares) if stop is StopLevel.KERNEL else CudaDevice(shares)


if __name__ == "__main__":
    main(open_device)
