"""Switch QoS configurations: one policy file, every switch, checked before anything is written.

``policy`` holds the file people write, ``vendors`` one module per switch system, ``generator`` turns one into the
other and refuses what a switch cannot express. Plain Python; never imports the native library.
"""
