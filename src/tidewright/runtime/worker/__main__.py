"""``python -m tidewright.runtime.worker``: started by the runtime alone."""

from .main import main

if __name__ == "__main__":
    main()
