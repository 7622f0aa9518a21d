"""The jobs, `join`, `join_all` and `enrich`: how each is planned, carried out and explained.

`plans`, `enrich_plan` what the public calls return · `job` what any job has, `join`, `join_all`,
`enrich` the three · `planning` the one way to a DataFrame · `course`, `enrich_course` how a step
leads an operator · `checks` of inputs, session and state directory · `join_words`,
`join_all_words` explanations.

Of a join: `bands`, `sampling`. Of several inputs: `shares`. Of an enrichment: `staging`, `refresh`,
`enrich_costs`, `streamkeys`, `shedding`.
"""
