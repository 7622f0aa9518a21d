"""MINER: the operator, and its policy of flushing (`areas`, `gains`, `flushing`)."""
