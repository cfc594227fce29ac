"""``mlt switch apply``: a generated configuration onto a device, confirmed or taken back.

``device`` is what every kind of device offers, ``session`` the order in which it is asked; one module per way in:
the testbed's software switch, a shell (Linux, SONiC over SSH), NVUE's REST, NAPALM, gNMI. Their libraries are the extra
``mlt[switch-push]`` and are imported by the module that needs them. No vendor's device took part in any test: the tests
start servers that speak the protocols.
"""
