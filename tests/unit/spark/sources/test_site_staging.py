"""What puts promise of the rows to come."""

from dovetail.spark.sources.site_staging import Piece, _promised


def test_promise_when_later_puts_have_older_rows_then_waits_for_them() -> None:
    def piece(oldest: int, newest: int) -> Piece:
        return Piece("f", 0, 1, oldest, newest)

    groups = [[piece(10, 20)], [piece(35, 90), piece(30, 40)], [piece(50, 100)]]
    assert [put.until for put in _promised(groups, 5)] == [30, 50, 95]
    assert [put.until for put in _promised(groups, 60)] == [30, 40, 40]
    assert [put.until for put in _promised(groups, None)] == [None] * 3
