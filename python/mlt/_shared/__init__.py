"""Code that several folders of the package need and no user imports: units, addresses, ports, JSON lines, processes."""
