"""``python -m tidewright.notify``."""

import sys

from .main import main

sys.exit(main())
