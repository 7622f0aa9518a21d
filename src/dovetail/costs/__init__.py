"""What a join will cost, and how to say so: engine-independent, before anything runs."""
