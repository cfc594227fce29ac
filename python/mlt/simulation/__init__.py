"""Plans in the simulator: production endpoints on the cluster's graph, in virtual time.

``scenario`` turns a cluster into nodes and cables and runs transfers over them, ``workload`` turns a plan into
transfers with dependencies, ``report`` times the alternatives of ``mlt plan auto``. Planners do not import this
package.
package.
"""
