"""The program in an allocation's batch step that runs trial after trial; standard library only."""
