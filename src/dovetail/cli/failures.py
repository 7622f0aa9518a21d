"""What to tell a user about an error.

A step of a join fails in a Python worker, and its error comes back as text, deep inside Spark's
own; a mistake in a query comes back with the plan and the trace of the JVM. Of all that, a user
wants the one line that says what was wrong.
"""

import re

from dovetail.errors import DovetailError

_DOVETAIL = re.compile(r"dovetail\.errors\.\w+: (.+)")  # ends the traceback of a Python worker
_JAVA = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)  # what Py4J puts before a Java trace


def failure(error: BaseException) -> str | None:
    """What was wrong and what to do; None for a bug, which wants its traceback."""
    if isinstance(error, DovetailError):
        return str(error)
    if is_sparks(error):
        found = _DOVETAIL.findall(str(error))
        return str(found[-1]) if found else spark_says(error)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return f"the operating system refuses: {error}"
    return None


def is_sparks(error: BaseException) -> bool:
    """Whether an error comes from Spark; told by its name, so that Spark need not be loaded."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def spark_says(error: BaseException) -> str:
    """The line of Spark's message that matters."""
    text = str(error)
    from_java = _JAVA.search(text)
    lines = [from_java[1]] if from_java else [line for line in text.splitlines() if line.strip()]
    return f"Spark says: {lines[0].strip() if lines else 'nothing'}"
