"""The cache of join values (`values`), and what misses it (`notes`)."""
