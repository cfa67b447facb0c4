"""Paged attention and the KV write, each a naive reference beside the fast versions; and drawing.

Everybody reads the same layout: a cache is ``[num_blocks, block_size, n_kv_heads, head_dim]``, a slot is
``block · block_size + offset``, and a sequence's context lies in the blocks of its row of ``block_tables``.
Importing this package imports neither torch nor triton nor numba; the modules below do.
"""
