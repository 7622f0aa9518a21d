"""The jobs, `join`, `join_all` and `enrich`: how each is planned, carried out and explained."""
