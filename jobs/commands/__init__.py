"""What `steelyard` can do, a file a command: its options, and how its result is shown."""
