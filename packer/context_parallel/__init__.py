"""Which tokens of a micro-batch each context-parallel rank computes.

A plan is a list of chunks: tokens [start, stop) of a piece go to a rank. Every token is on exactly
one rank and the ranks' token counts differ by at most one, for any lengths, without padding.

    per_sequence          2 x cp_size chunks of the packed sequence; rank r takes r and its mirror
    per_document          the same of every piece
    per_document_aligned  the same, cut at multiples of attention tiles
    mixed                 short pieces whole on one rank, long ones cut so that all finish together
    adaptive              for each micro-batch the least predicted time of several
    padded_head_tail      every piece padded, as Transformer Engine needs it
    whole_document        nothing cut, to compare with
"""

from packer.context_parallel.options import CPOptions
from packer.context_parallel.plan import CPPlan
from packer.context_parallel.strategies import DIAGNOSTIC, STRATEGIES, plan_context_parallel

__all__ = ["DIAGNOSTIC", "STRATEGIES", "CPOptions", "CPPlan", "plan_context_parallel"]
