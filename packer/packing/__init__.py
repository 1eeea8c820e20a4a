"""Pieces to micro-batches, one policy a module.

`packer.packing.packer` stands in front of them, `packer.packing.whole` packs a stream that is there
as a whole.

concat       fill and cut: every micro-batch S tokens in stream order, nothing balanced
reorder      balance inside a step; nothing moves to another step but what does not fit
wlb          Algorithm 1 of WLB-LLM (arXiv 2503.17924) with its gaps closed
lookahead    windows of steps planned as a whole, on the pipeline's clock
fixed_greedy fixed length: the pieces of some steps dealt anew over bins of S tokens

For simulation only:

wlb_printed     Algorithm 1 exactly as printed; it keeps no bound
fixed_solver    fixed length by a solver, within a time limit
ffd, bfd        first- and best-fit-decreasing by length
karmarkar_karp  largest differencing on workload; it does not look at tokens
"""
