"""Messages to the user about errors.

A step of a join fails in a Python worker, and its error comes back as text, deep inside Spark's
own; a mistake in a query comes back with the plan and the trace of the JVM. Of all that, a user
wants the one line that says what was wrong.
"""

import re
import sys

from dovetail.errors import DovetailError

_DOVETAIL = re.compile(r"dovetail\.errors\.\w+: (.+)")  # ends the traceback of a Python worker
_JAVA = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)  # what Py4J puts before a Java trace

_JVM_GONE = (
    "Spark's Java process is gone: it was killed, or ran out of memory. What was committed is "
    "safe; start the command again to go on from there."
)


def failure(error: BaseException) -> str | None:
    """The message of an error, with what to do; None for a bug, which wants its traceback."""
    if isinstance(error, DovetailError):
        return str(error)
    if is_sparks(error):
        found = _DOVETAIL.findall(_text(error))
        return str(found[-1]) if found else spark_says(error)
    if isinstance(error, ConnectionRefusedError) and "py4j" in sys.modules:
        return _JVM_GONE
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return f"the operating system refuses: {error}"
    return None


def is_sparks(error: BaseException) -> bool:
    """Whether an error comes from Spark; told by its name, so that Spark need not be loaded."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def spark_says(error: BaseException) -> str:
    """The line of Spark's message that matters."""
    text = _text(error)
    from_java = _JAVA.search(text)
    if from_java is None and _is_of_a_call(error) and "\n" not in text:
        return _JVM_GONE
    lines = [from_java[1]] if from_java else [line for line in text.splitlines() if line.strip()]
    return f"Spark says: {lines[0].strip() if lines else type(error).__name__}"


def _text(error: BaseException) -> str:
    """The message of a Spark error: some ask the JVM for it, which may be gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return str(getattr(error, "_desc", None) or "")


def _is_of_a_call(error: BaseException) -> bool:
    """Whether the bridge to the JVM failed; what the JVM itself complains of has more to say."""
    return type(error).__name__ in ("Py4JError", "Py4JNetworkError")
