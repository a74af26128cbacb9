"""What ``tide doctor`` looks at and repairs: one file for each kind of check, put together in ``examine``."""

from __future__ import annotations

from ...live.journal.doctor import Report as Report
from .examine import examine as examine
from .examine import mend as mend
from .examine import repair as repair
from .finding import Finding as Finding
from .finding import Repair as Repair
