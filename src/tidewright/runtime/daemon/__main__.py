"""``python -m tidewright.runtime.daemon``: a runtime for one device, until it is asked to end."""

from .main import main

if __name__ == "__main__":
    main()
