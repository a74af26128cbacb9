"""``agent_endpoint``, by the name under which ranks of images made before import it with their first patched module."""

from .agent_endpoint import LEVELS, read
from .agent_endpoint import rank_dir as box
from .agent_endpoint import report_level as say

__all__ = ["LEVELS", "box", "read", "say"]
