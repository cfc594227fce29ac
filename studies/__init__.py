"""The figures and experiments of the papers that the planners follow, run from the root of the repository.

Not in the wheel: ``python -m studies.byteps``, ``studies.aleph.figures``, ``studies.aleph.ratio``, ``studies.aro`` and
``studies.psnet`` write what is in ``docs/results``. Each says its own ``--help``.
"""
