"""What is observed and recorded of a run: heartbeats, events, journal, diagnosis. Decides nothing."""
