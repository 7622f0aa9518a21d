"""The table `[plan]` of a query's file: how to choose a plan, or a given one."""

from dataclasses import dataclass, replace
from typing import Any

from dovetail.cli.sections import Section, are_texts, is_int, saying
from dovetail.multisite.plan import PAPER, Algorithm, Plan, Step
from dovetail.multisite.query import Query
from dovetail.multisite.tree import AnyPlan, TreePlan, check_streams

PLANNERS = ("joint", "greedy", "algorithm-10", "exhaustive", "tree", "fixed")
_KEYS = ("planner", "algorithms", "replan_every", "sequences", "tree")


@dataclass(frozen=True)
class PlanPart:
    """The settings in `[plan]`."""

    planner: str = "joint"
    algorithms: tuple[Algorithm, ...] = PAPER
    replan_every: int = 0
    fixed: AnyPlan | None = None


def read_plan(top: Section, query: Query) -> PlanPart:
    section = top.inner("plan", _KEYS)
    names = section.texts("algorithms")
    for name in names:
        if name not in tuple(Algorithm):
            section.refuse("algorithms", f"has {name!r}", "Allowed", tuple(Algorithm))
    part = PlanPart(
        section.choice("planner", PLANNERS) or "joint",
        tuple(Algorithm(name) for name in names) or PAPER,
        section.get("replan_every", "intervals, 0 for never", lambda v: is_int(v) and v >= 0) or 0,
    )
    given = [key for key in ("sequences", "tree") if key in section]
    if len(given) != (part.planner == "fixed"):
        section.refuse(
            given[0] if given else "sequences",
            'goes with planner = "fixed", and that with sequences or a tree',
        )
    if given:
        read = _sequences if given == ["sequences"] else _tree
        part = replace(part, fixed=read(section, query))
    if part.planner == "tree":
        _check_streams(section, part, query)
    if part.replan_every and (part.planner == "tree" or isinstance(part.fixed, TreePlan)):
        section.refuse(
            "replan_every",
            "has to be 0 for a tree: no other plan could use the intermediate results it keeps",
        )
    return part


def _sequences(section: Section, query: Query) -> AnyPlan:
    named = section.inner("sequences")
    with saying(section, "sequences"):
        steps = {head: [_step(section, text) for text in named.texts(head)] for head in named}
        return Plan(query, steps)


def _step(section: Section, text: Any) -> Step:
    algorithm, _, stream = str(text).partition(" ")
    if algorithm not in tuple(Algorithm) or not stream.strip():
        section.refuse(
            "sequences", f'has {text!r}, but a step is an algorithm and a stream, "SM-S1 r2"'
        )
    return Step(stream.strip(), Algorithm(algorithm))


def _tree(section: Section, query: Query) -> AnyPlan:
    what = 'the first stream and the joins, ["r1", ["r2", "SM-S1", "SP-D"]]: each a stream, how '
    what += "its rows meet those joined so far, and how these meet its"
    parts = section.get("tree", what, _is_tree)
    with saying(section, "tree"):
        return TreePlan.of_list(query, parts)


def _is_tree(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 1
        and isinstance(value[0], str)
        and all(are_texts(join) and len(join) == 3 for join in value[1:])
        and all(name in tuple(Algorithm) for join in value[1:] for name in join[1:])
    )


def _check_streams(section: Section, part: PlanPart, query: Query) -> None:
    """Refuse what no tree can do, before anything is chosen."""
    with saying(section, "planner"):
        check_streams(query)
    if len({algorithm.at_source for algorithm in part.algorithms}) < 2:
        section.refuse(
            "algorithms",
            "has to have one that joins at the source (SP-S, SM-S1, SM-S2) and one that joins at "
            'the destination (SP-D, SM-D1, SM-D2), for planner = "tree"',
        )
