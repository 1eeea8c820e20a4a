"""The thin 4D trainer; it reads shards through pipeline.shard and nothing else of ours.

Importing this package, or `trainer.errors`, does not import torch.
"""
