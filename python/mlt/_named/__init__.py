"""Collectives matched by name, for Horovod's API: independent of the framework, over one ``mlt.Context``.

A rank submits a ``Request`` with a name; the coordinator on rank 0 waits until every rank of its process set submitted
that name, checks that the requests agree, and sends all of them the same ordered list of answers. Each rank carries the
answers out in that order, so that ranks may submit in different orders. Requests that disagree get an error on every
rank; nothing was sent for them, and the next request works.

- ``elements``: arithmetic that the transport does not do (scaling, integer averages, Adasum).
- ``requests``: ``Request`` and ``Answer``, and their form in messages.
- ``agreement``: whether the requests of one name agree.
- ``coordinator``: which names are ready, the cache, joined ranks, process sets; without I/O.
- ``channel``: messages of any length between rank 0 and the others.
- ``execution``: carries out an answer with the context's collectives.
- ``waiting``: which threads wait, and whether one is left that could submit more.
- ``timeline``: records operations for trace viewers.
- ``leader``: rank 0's side, with the coordinator.
- ``controller``: ``Controller``, which frameworks use; ``operations``: ``start``, an operation on their tensors.
- ``gradients``: the loss that is allowed and the layers, for the plugins' exchanges of gradients.
- ``job``, ``basics``, ``control``, ``process_sets``, ``objects``, ``reduce_ops``, ``compression``, ``groups``,
  ``elastic``: what of Horovod's API needs no framework; ``api`` has its names, which the plugins of all frameworks
  re-export.

The tensors are flat numpy arrays of uint8 with an element type by name, so that plugins of other frameworks can use it.
"""
