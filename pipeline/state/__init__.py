"""A job's state beside what it makes: who works there, and which units are finished."""
