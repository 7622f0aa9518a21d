"""Cost models of the joins, predictions and explanations; engine-independent."""
