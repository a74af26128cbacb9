"""``python -m tidewright.runtime.daemon``: a runtime for one device, until it is told to end."""

from .main import main

if __name__ == "__main__":
    main()
