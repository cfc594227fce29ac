"""What several rooms of the package need and no user imports: units, addresses, JSON lines, processes."""
