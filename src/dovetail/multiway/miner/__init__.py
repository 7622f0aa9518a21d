"""MINER: the operator, and its policy of flushing (`areas`, `relation_yield`, `flushing`)."""
