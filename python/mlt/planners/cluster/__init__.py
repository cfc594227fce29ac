"""The cluster file: hosts, links and jobs; the input of every planner."""

from mlt.planners.cluster._file import (
    Address,
    Cluster,
    Host,
    Job,
    Link,
    Name,
    Named,
    Port,
    SegmentId,
    Switch,
    dump_cluster,
    parse_cluster,
    read_cluster,
)

__all__ = [
    "Address",
    "Cluster",
    "Host",
    "Job",
    "Link",
    "Name",
    "Named",
    "Port",
    "SegmentId",
    "Switch",
    "dump_cluster",
    "parse_cluster",
    "read_cluster",
]
