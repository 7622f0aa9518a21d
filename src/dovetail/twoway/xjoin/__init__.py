"""XJoin: the operator (`operator`), and what is known of its partitions (`cells`)."""
