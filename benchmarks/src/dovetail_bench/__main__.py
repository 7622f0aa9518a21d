"""`python -m dovetail_bench`: the same commands as `dovetail bench`."""

from dovetail_bench.cli import app

if __name__ == "__main__":
    app(prog_name="dovetail bench")
