"""The only state of a study: an append-only journal, replayed into a StudyState."""
