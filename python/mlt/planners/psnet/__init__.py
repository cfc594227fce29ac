"""Network graphs for training clusters: PSNet, fat-tree and leaf-spine, and what can be planned on them.

Import the concern you need (``from mlt.planners.psnet.clos import fat_tree``): networkx, scipy and matplotlib belong
to the extra ``mlt[plan]`` and are imported only by the modules that use them.
"""
