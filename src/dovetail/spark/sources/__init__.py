"""Sources that plans read besides the user's streams: clock, lakehouse tables, sites.

`clock` makes silent streams tick · `tables` opens the table of `enrich`, however it is kept, with
`lakehouse`, `delta` and `iceberg` · `site_source` the results of sites, `site_publish` rows for
them · `register` lets a session know of these.
"""
