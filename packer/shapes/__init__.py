"""What a decoder's layers cost a token and a query-key pair, from its Hugging Face `config.json`.

FLOPs are of the forward pass, matrix products alone, a multiply-add being two. Norms, rotary
positions, gates of one output and softmax are left out: below a percent of FLOPs, though not of
time. So are the embedding and the vocabulary's head: they are on one pipeline stage each, which is
the schedule's matter, and a token's work in them is the same in every micro-batch. Multi-token
prediction layers and vision towers are left out as well.
"""
