"""Why a run failed: evidence first (agent, probe), log text last."""
