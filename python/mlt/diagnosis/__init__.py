"""Diagnoses the path between two hosts from both ends: ``mlt doctor HOST`` on one, ``mlt doctor --serve`` on the other.

``datagrams`` sends and reads datagrams with DSCP, DF and ICMP errors; ``responder`` is the serving side, ``session``
the examining side; ``path_mtu`` searches; ``examine`` turns measurements into findings. Plain Python without
privileges: it must run where the native library does not load. It does not use the transport's own protocol.
"""
