"""What the planners share: documents that people write."""
