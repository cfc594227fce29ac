"""How a process becomes a rank of a job: its configuration, its address and interfaces, the rendezvous, the secret."""
