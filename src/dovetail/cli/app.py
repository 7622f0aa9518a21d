"""The command `dovetail`: options, subcommands, and messages when something goes wrong.

A mistake that a user can act on is one message on standard error and exit code 2, without a
traceback unless `--debug` asks for one. That goes for Dovetail's own errors, for those that come
back from a Spark task wrapped in Spark's, and for Spark's own complaints. Anything else is a bug
and keeps its traceback.
"""

import importlib.metadata
import sys
import traceback
from typing import Annotated, Any

import typer
import typer.core

import dovetail
from dovetail.cli import checkup, demo, top
from dovetail.cli.examples import examples
from dovetail.cli.failures import failure
from dovetail.cli.job import explain, run
from dovetail.cli.stopping import stoppable
from dovetail.errors import DovetailError

USER_ERROR = 2  #: the exit code of a mistake that the message explains

_EXAMPLES = examples(
    ("dovetail demo", "orders and payments, beside Spark's join"),
    ("dovetail demo enrich", "look a stream up in a table"),
    ("dovetail doctor", "check Java, Spark, disk, permissions"),
    ("dovetail run job.toml", "run the job that a file describes"),
    ("dovetail top ckpt/join", "watch a running join"),
    ("dovetail site run --local sites.toml", "join streams at distant sites"),
)


class Commands(typer.core.TyperGroup):
    """The subcommands: Dovetail's own, and those that other installed packages add.

    A package adds one by an entry point in the group `dovetail.commands`, which names a
    `typer.Typer` and is loaded when it is asked for. Where names are alike Dovetail's own counts.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        own = [*super().list_commands(ctx), *_LOADED]
        return [*own, *sorted(_added().keys() - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        load = _LOADED.get(cmd_name)
        own = load() if load else super().get_command(ctx, cmd_name)
        return own or _command_added(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            message = failure(error)
            if message is None:
                raise
            if ctx.params.get("debug"):
                traceback.print_exc()
            typer.secho("dovetail: ", fg="red", bold=True, err=True, nl=False)
            typer.echo(message, err=True)
            raise typer.Exit(USER_ERROR) from None


app = typer.Typer(
    cls=Commands,
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dovetail {dovetail.__version__}")
        raise typer.Exit


@app.callback()
def _dovetail(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="DOVETAIL_DEBUG", help="Show tracebacks with errors."),
    ] = False,
) -> None:
    """Stream joins for Apache Spark that stay inside the memory budget you name."""


for _module in (demo, run, explain):
    app.command(_module.NAME, epilog=_module.EXAMPLES)(stoppable(_module.command))
for _module in (top, checkup):
    app.command(_module.NAME, epilog=_module.EXAMPLES)(_module.command)


def _added() -> dict[str, importlib.metadata.EntryPoint]:
    """The commands of other installed packages, not loaded yet."""
    return {point.name: point for point in importlib.metadata.entry_points(group=_GROUP)}


def _command_added(name: str) -> Any:
    """A command of another package; if it is missing or cannot be loaded, one that says so."""
    point = _added().get(name)
    if point is None:
        how = _ELSEWHERE.get(name)
        return how and _unavailable(name, "not installed", f"there is no `{name}` here: {how}")
    try:
        return _named(name, point.load())
    except ImportError as error:
        package = point.dist.name if point.dist else point.module
        found = f"`{name}` cannot be loaded ({error}). Install {package} anew, with what it needs"
        return _unavailable(name, "cannot be loaded", found)


def _unavailable(name: str, state: str, message: str) -> Any:
    """A command that raises `message`, whatever follows its name."""
    placeholder = typer.Typer(rich_markup_mode=None)

    @placeholder.command(
        help=message,
        short_help=f"Of another package; {state}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def unavailable() -> None:
        raise DovetailError(message)

    return _named(name, placeholder)


def _site() -> Any:
    """The command for sites, which loads Arrow Flight."""
    from dovetail.cli.site.command import app as site

    return _named("site", site)


def _named(name: str, commands: typer.Typer) -> Any:
    command = typer.main.get_command(commands)
    command.name = name
    return command


_LOADED = {"site": _site}
_GROUP = "dovetail.commands"
#: commands that one may look for here though they are in another package: how to get them
_ELSEWHERE = {
    "bench": "the benchmarks are a package of their own, dovetail-bench. "
    "Install it from a clone of Dovetail: pip install ./benchmarks"
}


def main() -> None:
    """The entry point of the installed command `dovetail`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a bar is no reason to fail on an ASCII terminal
    app(prog_name="dovetail")
