"""The placement study: one recorded workload, many policies, the same arrivals in the same order for each.

`workload` holds nodes and arrivals, `cluster` what is free, `policies` the scores, `study` runs them, `published` has
the figures to compare with. numpy is needed here and nowhere else.
"""
