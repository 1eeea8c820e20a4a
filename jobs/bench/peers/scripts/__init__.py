"""What runs inside a peer's own environment; nothing here imports anything of ours."""
