"""Switch QoS configurations: generated for every switch from one policy file, and checked before anything is written.

``policy`` is the user's file, ``vendors`` has one module per switch system, ``generator`` turns a policy into a
configuration and rejects what a switch cannot express. Plain Python; never imports the native library.
"""
