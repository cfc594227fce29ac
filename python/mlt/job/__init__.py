"""The steps by which a process becomes a rank of a job: configuration, address and interfaces, rendezvous, secret."""
