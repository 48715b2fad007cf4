"""What a person sees while a study runs: narration on stderr, driven by the journal."""
