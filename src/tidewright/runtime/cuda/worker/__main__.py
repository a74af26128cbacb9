"""``python -m tidewright.runtime.cuda.worker``: started by the runtime alone."""

from .main import main
from .models import open_device

if __name__ == "__main__":
    main(open_device)
