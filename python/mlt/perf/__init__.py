"""``mlt perf``: what this transport, and others beside it, make of a network.

``options`` says what is asked, ``conductor`` leads the ranks through it, ``agent`` is one rank of one transport in a
process of its own, ``peers`` are the transports, ``statistics`` and ``report`` say what came of it.
"""
