"""Errors, one class for each thing a user can act on.

Every message says what was wrong, where, and what to do about it. Catch `DovetailError` for all.
"""


class DovetailError(Exception):
    """Base of every error that Dovetail raises on purpose."""


class ArgumentError(DovetailError, ValueError):
    """An argument of a call is wrong in itself."""


class UnknownColumnError(ArgumentError):
    """`on` or `where` names a column that an input does not have."""


class ColumnClashError(ArgumentError):
    """Both inputs have a column of the same name that is not a shared join column."""


class KeyTypeError(ArgumentError):
    """The join columns of the two sides differ in type, or cannot be joined on."""


class BandKeyError(KeyTypeError):
    """`within` was asked for on a key that has no distance, or on several keys."""


class ConditionError(DovetailError):
    """`where` has no value for a pair of rows: a division by zero, or a number out of range."""


class MemoryBudgetError(DovetailError):
    """The budget is too small; the message says the least that would do, or what spills."""


class StateError(DovetailError):
    """Something about a state directory; the subclasses say what."""


class StateMissingError(StateError):
    """The state directory, or a version in it that the query needs, is not there."""


class StateMismatchError(StateError):
    """The state directory belongs to another query or to a join with other settings."""


class StateCorruptError(StateError):
    """A state file does not hold what was written to it."""


class StorageError(StateError):
    """The operating system refused to read or write a state file (a full disk, permissions)."""


class TableChangedError(DovetailError):
    """A table changed while it was being read."""


class TableUnreadableError(DovetailError):
    """A table is damaged, or files of it are gone."""


class EnvironmentProblemError(DovetailError):
    """Java, Spark or the Python of the workers is missing or too old."""


class EventTimeWarning(UserWarning):
    """A plan in which watermarks do not do what they seem to: it runs, but may lose results."""


class SiteError(DovetailError):
    """Something about a site that runs as a process of its own; the subclasses say what."""


class SiteUnavailableError(SiteError):
    """A site cannot be reached, or is behind: what was asked may be asked again later."""


class SiteAccessError(SiteError):
    """A token or a certificate is missing or wrong."""


class SiteRefusedError(SiteError):
    """A site does not take what it was sent, and will not, however often it is sent."""


class JobFileError(DovetailError):
    """A job file cannot be read or asks for something that does not exist."""
