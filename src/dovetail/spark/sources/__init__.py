"""What plans read besides the user's streams: the clock, tables of any kind, and sites."""
