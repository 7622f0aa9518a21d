"""`dovetail site`: serve a site, plan a query over several, run it."""

import logging
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypeVar

import pyarrow as pa
import typer

from dovetail.cli.examples import examples
from dovetail.cli.site.file import QueryFile, read_query, read_site
from dovetail.cli.site.plan import choose_plan, deployment, print_plan
from dovetail.cli.site.run import Run, carry_out, run_local
from dovetail.cli.site.views import complaint, left_out, refusals, status_tables
from dovetail.cli.views import make_console
from dovetail.errors import SiteError
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.server import SiteServer

Answer = TypeVar("Answer")
ADDRESS_FILE = "address"  #: in a site's data folder: where it listens

_EXAMPLES = examples(
    ("dovetail site run --local sites.toml", "three sites on this machine"),
    ("dovetail site plan sites.toml", "who will send what to whom"),
    ("dovetail site serve site.toml", "be one of the sites"),
    ("dovetail site run query.toml", "run a query on sites that are served"),
)

app = typer.Typer(
    help="Join streams that live at distant sites, sending as little as possible.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

QueryArgument = Annotated[Path, typer.Argument(metavar="QUERY.TOML", help="The query's file.")]


@app.command(epilog=examples("dovetail site serve site.toml"))
def serve(
    config: Annotated[Path, typer.Argument(metavar="SITE.TOML", help="The site's file.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say warnings and errors only.")] = False,
) -> None:
    """Be a site: take rows, talk to the other sites, keep results, until Ctrl-C.

    Killed or stopped, and started again, it goes on with its queries where it was.
    """
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    file = read_site(config)
    _raise_open_files()
    host = Host(file.name, file.data, file.access, file.limits)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    host.restore()
    with closing(host):
        try:
            server = SiteServer(host, file.listen, file.access, verify_clients=file.verify_clients)
        except (pa.ArrowException, OSError) as error:
            problem = str(error).splitlines()[0]
            raise SiteError(f"cannot listen at {file.listen}: {problem}") from error
        address = f"{file.listen.rpartition(':')[0]}:{server.port}"
        fresh = file.data / f"{ADDRESS_FILE}.new"
        fresh.touch(mode=0o600)
        fresh.write_text(address, encoding="utf-8")
        fresh.replace(file.data / ADDRESS_FILE)
        way = _way(server.secure, file.verify_clients)
        typer.echo(f"site {file.name} listens at {address}, {way}")
        stop.wait()
    server.shutdown()


def _way(secure: bool, verify_clients: bool) -> str:
    if not secure:
        return "WITHOUT TLS, for trials on this machine only"
    if verify_clients:
        return "with TLS, for callers with a certificate of its CA"
    return (
        "with TLS, for ANY caller as far as the token: anybody who reaches the port can fill the "
        "memory (see verify_clients)"
    )


def _raise_open_files() -> None:
    """Raise the limit of open files as far as the system lets one process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@app.command(epilog=examples("dovetail site plan sites.toml"))
def plan(query_file: QueryArgument) -> None:
    """Choose a plan for a query and say what it will send. Starts nothing."""
    file = read_query(query_file)
    print_plan(make_console(), file, choose_plan(file))


@app.command(
    epilog=examples(
        "dovetail site run --local sites.toml",
        "dovetail site run --local sites.toml --intervals 60 --out found.parquet",
        "dovetail site run query.toml",
    )
)
def run(
    query_file: QueryArgument,
    local: Annotated[
        bool, typer.Option("--local", help="Start every site on this machine, for this run.")
    ] = False,
    intervals: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="End after so many intervals of input. Default: 20 of made-up rows with --local, "
            "all of a file, else until Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the results to this Parquet file.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="With --local: keep the sites' folders here. Default: a temporary one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Plan a query, hand it out to its sites, and watch it.

    Where the file names an input, its rows are sent from here. A query that is stopped with Ctrl-C
    goes on at its sites; `dovetail site stop` ends it.
    """
    file = read_query(query_file)
    console = make_console()
    chosen = choose_plan(file)
    print_plan(console, file, chosen)
    if local:
        run_local(console, file, chosen, intervals, out, state)
    else:
        handed = deployment(file, chosen, file.addresses)
        carry_out(console, Run(file, handed, file.access()), intervals, out)


@app.command(epilog=examples("dovetail site status query.toml"))
def status(query_file: QueryArgument) -> None:
    """Say how far a query has come at each of its sites, and whether results may be missing."""
    file = read_query(query_file)
    found, problems = _ask_all(file, lambda _, client: client.status(file.name))
    for table in status_tables(found) if found else ():
        make_console().print(table)
    if notice := left_out(found):
        make_console().print(notice)
    _complain(*problems, refusals(found), complaint(found))


@app.command(epilog=examples("dovetail site stop query.toml"))
def stop(
    query_file: QueryArgument,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Delete its state and results at the sites, too."),
    ] = False,
) -> None:
    """End a query at all of its sites. Without --forget it goes on when they are started again."""
    file = read_query(query_file)

    def end(host: str, client: SiteClient) -> None:
        client.stop(file.name, forget=forget)
        typer.echo(f"{file.name} is stopped at {host}")

    _, problems = _ask_all(file, end)
    _complain(*problems)


def _ask_all(
    file: QueryFile, ask: Callable[[str, SiteClient], Answer]
) -> tuple[dict[str, Answer], list[str]]:
    """The answers by host, and what those complain of that fail: the others are asked as well."""
    access = file.access()
    answers, problems = {}, []
    for host in file.hosts:
        client = SiteClient(file.addresses[host], access)
        try:
            answers[host] = ask(host, client)
        except SiteError as error:
            problems.append(str(error))
        finally:
            client.close()
    return answers, problems


def _complain(*problems: str | None) -> None:
    if said := [problem for problem in problems if problem]:
        raise SiteError("; ".join(said))
