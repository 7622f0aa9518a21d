"""`python -m dovetail.bench`: the same commands as `dovetail bench`."""

from dovetail.bench.cli import app

if __name__ == "__main__":
    app(prog_name="dovetail bench")
