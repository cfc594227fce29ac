"""BytePS: distribution of bytes over summation services."""
