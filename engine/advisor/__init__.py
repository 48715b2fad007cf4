"""Ideas from rules and from language models: candidates and starting beliefs, never decisions."""
