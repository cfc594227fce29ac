"""What the planners share: documents that people write, and quantities with units."""
