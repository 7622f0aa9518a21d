"""XJoin: the operator, its phases (`reactive`, `cleanup`), what is known of cells (`cells`)."""
