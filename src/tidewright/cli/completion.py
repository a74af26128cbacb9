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
    eval "$(tide completion zsh)"      in ~/.zshrc, after compinit
    tide completion fish | source      in ~/.config/fish/config.fish
    """
    from .complete import shells
    from .shell import COMPLETING, tide

    click.echo(shells()[shell](tide, {}, "tide", COMPLETING).source())
