"""The format on disk: what the trainer may see of this project."""
