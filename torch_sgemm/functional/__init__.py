"""The functions of tensors: ``torch_sgemm.matmul``, ``linear`` and ``pack``.

:mod:`~torch_sgemm.functional.route` decides how a call reaches its kernel. ``torch_sgemm`` exports
the three functions and ``PackedMatrix``; the rest is internal.
"""
