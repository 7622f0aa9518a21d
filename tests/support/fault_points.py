"""The points at which `dovetail.spark.faults` can stop a task, in the order of a step."""

POINTS = (
    "mid-claim",
    "before-load",
    "mid-collect",
    "after-load",
    "after-push",
    "after-poll",
    "after-snapshot",
    "after-outbox",
    "before-manifest",
    "before-link",
    "after-link",
    "after-commit",
    "mid-emit",
    "after-emit",
)
SHED_POINTS = ("mid-publish", "after-publish")  #: only where rows are left out, and kept
