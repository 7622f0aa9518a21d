"""Seek: the operator, and the rows that wait for its sweeps (`sweep`)."""
