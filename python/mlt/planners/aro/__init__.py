"""ARO: aggregator-aware routing for in-network aggregation in Clos networks.

From an ``instance`` (Clos network, programmable switches port by port, jobs) to routes: ``single`` solves one task to
proven optimality, ``multiple`` several tasks and jobs together with a proven bound, ``accelerate`` offers the paper's
SRO, APP and QSR, ``baselines`` what it compares with. ``verify`` checks any routes independently and
``export`` turns them into SRv6 segment lists, OpenFlow rules and static ECMP overrides.
"""
