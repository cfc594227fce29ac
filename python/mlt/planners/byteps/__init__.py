"""BytePS: which summation service holds which bytes."""
