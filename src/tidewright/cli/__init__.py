"""cli: the command ``tide``. One file per command, loaded only when that command is typed.

Knows nothing but what the API says; builds nothing itself (room app does).
"""

MAY_IMPORT = ("base", "model", "wire", "app")


def main() -> None:
    """Run ``tide`` with the process's arguments and exit with its code (docs/exit-codes.md)."""
    try:
        from .shell import run

        code = run()
    except KeyboardInterrupt:  # while modules are loaded; later ones are the shell's
        code = 130
    raise SystemExit(code)
