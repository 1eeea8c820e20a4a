"""The search of `lookahead`: from a window of steps to a better step for each piece.

window     the search set up and read back; groups: the window seen from afar
objective  what is made small
annealing  which step each long piece runs in; moves: what to try next
fluid      what a step costs while its short pieces are a fluid
settling   pieces, whole, into micro-batches

`annealing`, `moves`, `fluid` and `settling` are compiled.
"""
