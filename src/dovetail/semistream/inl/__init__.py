"""Index nested loops: the operator, the leaves that it reads, and the pool that keeps some."""
