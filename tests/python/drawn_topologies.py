"""Modules of a PSNet, drawn by hypothesis: for the tests of the planner and of its study."""

from __future__ import annotations

from hypothesis import strategies as st

from mlt.planners.psnet.psnet import Module

modules = st.builds(
    lambda tors, down, extra, servers: Module(
        ecs_ports=tors * down + extra % down, tor_downlinks=down, tor_uplinks=servers + 1
    ),
    st.integers(2, 5),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 4),
)
