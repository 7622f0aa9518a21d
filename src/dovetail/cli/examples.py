"""The examples below the help of a command."""

_WIDTH = 32  # of commands, beside which their meaning stands


def examples(*commands: tuple[str, str] | str) -> str:
    """Commands, and what they do; an empty line between them, as Typer joins lines otherwise."""
    lines = ["[bold]Examples[/bold]"]
    for each in commands:
        command, meaning = (each, "") if isinstance(each, str) else each
        space = " " * (max(0, _WIDTH - len(command)) + 3)
        lines.append(f"  [cyan]{command}[/cyan]{space}{meaning}")
    return "\n" + "\n\n".join(lines) + "\n"
