"""``mlt switch apply``: applies a generated configuration to a device, then confirms it or rolls it back.

``device`` is the interface of all devices, ``session`` the order of the calls. One module per access method: the
testbed's software switch, a shell (Linux, SONiC over SSH), NVUE's REST API, NAPALM, gNMI. Their libraries are the extra
``switch-push``; each is imported only by the module that needs it. No test used a vendor's device: the tests start
servers that speak the protocols.
"""
