"""The paths of a job's results and state: resolved, and printed."""

from pathlib import Path

from dovetail.cli.job.execution import state_of
from dovetail.cli.job.file import Job, read_job
from dovetail.errors import JobFileError, StateMissingError
from dovetail.specs import state_path

_DEFAULT = "dovetail"  # the folder below a checkpoint that state is in unless told otherwise


def results_of(job: Job) -> str:
    """Where the results of a job go."""
    sink = job.sink
    if sink.table is not None:
        return f"the table {sink.table}"
    if sink.format == "console":
        return "standard output"
    return f"the {sink.format} sink" if sink.path is None else sink.path


def state_at(where: Path) -> Path:
    """The state directory of a join: itself, by the checkpoint of its query, or by its job file.

    A directory that is not there yet counts as one to come.
    """
    if where.suffix == ".toml" or where.is_file():
        job = read_job(where)
        if not job.streaming:
            raise JobFileError(f"{where} describes a batch job, which keeps no state to look at")
        return state_of(job)
    root = state_path(where)
    if not (root / "offsets").is_dir() or _is_state(root):
        return root
    found = sorted(path for path in (root / _DEFAULT).glob("*") if _is_state(path))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise StateMissingError(f"{root} is the checkpoint of several joins: name one of {names}")
    raise StateMissingError(
        f"{root} is a query's checkpoint, and no state is below it: name the directory that was "
        "given as state=, or the job file"
    )


def _is_state(path: Path) -> bool:
    from dovetail.spark.state import IDENTITY

    return (path / IDENTITY).exists() or any(path.glob("p*/latest"))
