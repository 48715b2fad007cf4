"""What to try next: a pure function from everything observed so far to one proposal."""
