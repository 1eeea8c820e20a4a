"""Pieces to micro-batches: one policy a module, `packer.packing.packer` in front of them.

concat       fill and cut: every micro-batch S tokens in stream order, nothing balanced
reorder      balance inside a step; nothing moves to another step but what does not fit
wlb          Algorithm 1 of WLB-LLM (arXiv 2503.17924) with its gaps closed
wlb_printed  the same exactly as printed; for simulation only, it keeps no bound
"""
