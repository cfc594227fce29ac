"""What is wrong between two hosts, measured from both ends: ``mlt doctor HOST`` on one, ``mlt doctor --serve`` there.

``datagrams`` sends and reads them with DSCP, DF and what the network answers; ``responder`` is the side that serves,
``session`` the side that asks; ``path_mtu`` searches; ``examine`` turns what was measured into findings. Plain Python
without privilege: it must run where the native library does not load. Nothing here is the transport's own protocol.
"""
