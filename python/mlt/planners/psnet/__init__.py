"""Network graphs for training clusters (PSNet, fat-tree, leaf-spine), and the planners for them.

Import the submodule you need (``from mlt.planners.psnet.clos import fat_tree``). networkx, scipy and matplotlib are in
the extra ``plan``; only the modules that use them import them.
"""
