"""Sites as processes: one for each host, Arrow Flight between them.

```
deployment   what the query node hands out: query, plan, addresses, how time is kept
machine      a host's sites, driven by events; does no I/O, so a replay gives the same again
ends         between whom messages go, level by level; refuses those that fit no query
events       what happens to a machine, as bytes
records      files of checksummed records; journal: events and snapshots; results: what was emitted
kept         snapshots as bytes, data only; folders: nobody else's
outbox       messages that another host has not acknowledged, shaped for experiments
inbox        messages of another host, each once and in order
driver       a machine by the clock: journal first, then the machine, then the world
jobs         what other threads bring to a driver, and whether there is room for more
restoring    a machine as it was, from its journal
link         sends an outbox, again and again until it is acknowledged; delays: how long that takes
access       token and certificates; handshake: why two ends do not come to talk
host         all parts of queries of one process, and their folders; limits: what it takes
server       the Flight service of a host; client: how others talk to it; wire, faults: in words
local        sites on this machine, each a process
```

Exactly once. Every event is in the journal before anything that follows from it leaves the host,
and the machine is deterministic. So a host that is killed comes back with the same messages and
results under the same numbers; who has them already drops them. Messages are numbered by link,
results by host, input by its producer.
"""
