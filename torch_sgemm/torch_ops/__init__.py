"""The operators of ``torch.ops.sgemm`` as PyTorch knows them: fakes, derivatives, vmap, sharding.

The folder imports no other one. :mod:`~torch_sgemm.torch_ops.ops` and
:mod:`~torch_sgemm.torch_ops.derivatives` are public, as ``torch_sgemm.ops`` and
``torch_sgemm.derivatives``. The compiled library, the private names of PyTorch and calls past the
dispatcher are internal.
"""
