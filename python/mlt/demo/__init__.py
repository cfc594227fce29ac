"""``mlt demo``: trains a small residual network on real images over the transport.

``runner`` starts and supervises the processes of each run. ``worker`` is the program of a training process. ``data``
and ``model`` hold the images and the network; ``display`` and ``report`` show the results. Only ``model``, ``training``
and ``worker`` need torch, and only the worker processes import them.
"""
