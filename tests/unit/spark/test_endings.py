"""How long each input has been silent."""

import json

from dovetail.spark.endings import SILENT_STEPS, Silence


def test_input_when_others_bring_rows_without_it_then_counts_as_ended_until_its_next() -> None:
    silence, so_far = Silence().among(2), 0
    for rows in [(10, 10), (10, 10), *[(10, 0)] * (SILENT_STEPS - 1)]:
        silence, so_far = silence.then(rows), so_far + sum(rows)
        assert silence.fallen_silent(so_far) == []
    silence = silence.then((10, 0))
    assert silence.fallen_silent(so_far + 10) == [1]
    assert silence.fallen_silent(10_000) == [], "these were few of all the rows"
    restored = Silence.of(json.loads(json.dumps(silence.facts())))
    assert restored == silence
    assert restored.then((0, 0)).fallen_silent(so_far + 10) == [1], "nobody spoke"
    assert restored.then((0, 1)).fallen_silent(so_far + 11) == []
