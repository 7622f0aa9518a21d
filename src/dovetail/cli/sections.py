"""One table of a job file: values taken out by type, and complaints that say where and what.

A complaint is a `JobFileError`. It names the file and the key, what stood there, and what may.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dovetail.errors import JobFileError
from dovetail.kernel.memory import parse_bytes
from dovetail.kernel.spans import parse_span

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """The content of a file, which complaints call `what`."""
    try:
        with file.open("rb") as handle:
            return tomllib.load(handle)
    except FileNotFoundError:
        raise JobFileError(f"there is no {what} {file}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobFileError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise JobFileError(f"the {what} {file} cannot be read: {error.strerror}") from error


class Section:
    """One table of the file. Its keys are taken out by type; an unknown key is refused.

    known: the keys that it may have; None: any.
    """

    def __init__(self, file: Path, name: str, values: Any, known: Sequence[str] | None) -> None:
        self.file = file
        self.name = name
        if not isinstance(values, dict):
            raise JobFileError(f"{file}: {name} is {_kind(values)}; write it as a table, [{name}]")
        self._values: dict[str, Any] = values
        for key in values:
            if known is not None and key not in known:
                self.refuse(key, f"is not known{_suggestion(key, known)}", "Keys", known)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def refuse(self, key: str, why: str, what: str = "", allowed: Sequence[str] = ()) -> NoReturn:
        """Complain about a key, and say what is allowed."""
        where = f"{self.name}.{key}" if self.name else key
        hint = f" {what}: {', '.join(allowed)}." if allowed else ""
        stop = "" if why.endswith("?") else "."
        raise JobFileError(f"{self.file}: {where} {why}{stop}{hint}")

    def get(self, key: str, kind: str, check: Callable[[Any], bool]) -> Any:
        """A value that passes the check, or None if the key is not there."""
        value = self._values.get(key)
        if value is not None and not check(value):
            self.refuse(key, f"is {_kind(value)} ({value!r}), but has to be {kind}")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key, "a text in quotes", lambda v: isinstance(v, str) and bool(v.strip()))
        return None if value is None else str(value)

    def needed_text(self, key: str, example: str) -> str:
        value = self.text(key)
        if value is None:
            self.refuse(key, f"is missing; write for example {key} = {example}")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        value = self.text(key)
        if value is not None and value not in allowed:
            self.refuse(key, f"is {value!r}{_suggestion(value, allowed)}", "Allowed", allowed)
        return value

    def flag(self, key: str) -> bool:
        return bool(self.get(key, "true or false", lambda v: isinstance(v, bool)))

    def whole(self, key: str) -> int | None:
        value = self.get(key, "a whole number of 1 or more", lambda v: is_int(v) and v >= 1)
        return None if value is None else int(value)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self.get(key, "a list of texts in quotes", are_texts) or ())

    def scalars(self, key: str) -> dict[str, str]:
        """A table of options, as Spark takes them: all values are texts."""
        what = "a table of texts, numbers and booleans"
        table = self.get(key, what, lambda v: isinstance(v, dict))
        for name, value in (table or {}).items():
            if not isinstance(value, (str, int, float, bool)):
                nested = " (put the dotted name in quotes)" if isinstance(value, dict) else ""
                self.refuse(
                    f"{key}.{name}",
                    f"is {_kind(value)}{nested}, but has to be a text, a number or a boolean",
                )
        return {name: _as_option(value) for name, value in (table or {}).items()}

    def inner(self, key: str, known: Sequence[str] | None = None) -> "Section":
        """A table inside this one, empty if it is not there."""
        name = f"{self.name}.{key}" if self.name else key
        return Section(self.file, name, self._values.get(key, {}), known)

    def tables(self, key: str, known: Sequence[str]) -> "dict[str, Section]":
        """The tables inside a table that names them."""
        named = self.inner(key)
        return {name: named.inner(name, known) for name in named}

    def span(self, key: str, example: str) -> str:
        """A span of time that Spark takes as a text, checked here."""
        text = self.needed_text(key, example)
        with saying(self, key, f"has to be a span of time such as {example}"):
            parse_span(text)
        return text

    def size(self, key: str, *names: str) -> str | int:
        """A size, checked but as it is written; or one of the names that stand for a size."""
        kind = 'a size such as "64MB"'
        value: str | int = self.get(key, kind, lambda v: is_int(v) or isinstance(v, str))
        if value not in names:
            with saying(self, key):
                parse_bytes(value)
        return value

    def location(self, key: str) -> str | None:
        """A path, made absolute from the file's directory; a URL is left as it is."""
        value = self.text(key)
        if value is None or is_url(value):
            return value
        return str((self.file.parent / Path(value).expanduser()).absolute())


class saying:  # noqa: N801
    """Turn a complaint about a value into one that names file and key."""

    def __init__(self, section: Section, key: str, why: str = "cannot be") -> None:
        self._section, self._key, self._why = section, key, why

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):  # as every `ArgumentError` is
            self._section.refuse(self._key, f"{self._why}: {error}")


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def is_url(text: str) -> bool:
    """Whether a path names its storage itself (`s3://…`, `file:/…`)."""
    return _URL.match(text) is not None


def exists(path: str) -> bool:
    """Whether there is anything at a local path; of patterns and other storage Spark will tell."""
    return is_url(path) or any(sign in path for sign in "*?[{") or Path(path).exists()


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return "a table" if isinstance(value, dict) else names.get(type(value), "a date or time")


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
