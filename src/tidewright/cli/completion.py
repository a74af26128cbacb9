"""``tide completion``."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print a completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL, to be evaluated by it:

    \b
    eval "$(tide completion bash)"     in ~/.bashrc
    eval "$(tide completion zsh)"      in ~/.zshrc
    tide completion fish | source      in ~/.config/fish/config.fish
    """
    from click.shell_completion import BashComplete, get_completion_class

    from .shell import COMPLETING, tide

    kind = get_completion_class(shell)
    assert kind is not None
    if issubclass(kind, BashComplete):
        # click asks the installed bash for its version before printing; any bash of this decade will do.
        kind = type("Bash", (kind,), {"_check_version": staticmethod(lambda: None)})
    click.echo(kind(tide, {}, "tide", COMPLETING).source())
