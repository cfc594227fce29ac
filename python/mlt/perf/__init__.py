"""``mlt perf``: goodput and latency of this transport and of others.

``options`` holds the options, ``conductor`` coordinates the ranks, ``agent`` is the process of one rank of one
transport, ``agents`` starts and ends these processes, ``transports`` has a module per transport, ``statistics`` and
``report`` evaluate the measurements.
"""
