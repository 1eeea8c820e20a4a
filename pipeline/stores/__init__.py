"""Records to token stores."""
