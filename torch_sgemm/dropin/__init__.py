"""PyTorch's own products through this package: ``enable``, ``disable``, ``enabled`` and ``stats``.

``torch_sgemm`` exports these, ``reset_stats`` and ``Stats``. The overrides are internal.
"""
