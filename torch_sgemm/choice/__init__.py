"""The table of kernels, the bound of each row's error, and which row a product takes.

``torch_sgemm`` exports what is public: ``kernels``, ``error_bound``, ``redone``, ``explain``,
``use_tuned`` and their types.
"""
