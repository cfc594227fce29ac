"""The main job behind ``mlt demo``: a small residual network learns real images over the transport.

``runner`` starts the processes of each run and watches over them; ``worker`` is what a training process executes;
``data`` and ``model`` say what is learned; ``display`` and ``report`` show it. Only ``model`` and ``worker`` (and
``training``) need torch, and only the worker processes import them.
"""
