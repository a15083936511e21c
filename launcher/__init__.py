"""The launcher: command line, agent, rounds, workers and the decision what to do after a failure."""
