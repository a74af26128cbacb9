"""cli: the command ``tide``. One file per command, loaded only when that command is typed.

Knows nothing but what the API says; builds nothing itself (room app does).
"""

from .entry import exit_with

MAY_IMPORT = ("base", "model", "wire", "app")


def main() -> None:
    """Run ``tide`` with the process's arguments and exit with its code (docs/exit-codes.md)."""

    def tide() -> int:
        from .shell import run

        return run()

    exit_with(tide)
