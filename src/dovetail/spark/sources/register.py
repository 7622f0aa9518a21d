"""Dovetail's own data sources, registered with a session once."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource


def register_once(session: SparkSession, source: type[DataSource]) -> None:
    """Let a session know a format; Spark warns of one that is registered a second time."""
    known = session._jsparkSession.sessionState().dataSourceManager()  # no public call tells
    if not known.dataSourceExists(source.name()):
        with _active(session):
            session.dataSource.register(source)


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make a session the thread's active one, in which Spark looks for the name to be free."""
    sessions = SparkSession._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
