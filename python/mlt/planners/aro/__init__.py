"""ARO: aggregator-aware routing for in-network aggregation in Clos networks.

From an ``instance`` (Clos network, programmable switches port by port, jobs) to routes: ``single`` solves one task to
proven optimality, ``multiple`` several tasks and jobs together with a proven bound. ``verify`` checks any routes
independently and ``export`` turns them into SRv6 segment lists and static ECMP overrides. The paper's SRO, APP and QSR,
and its baselines, are in ``studies/aro``.
"""
