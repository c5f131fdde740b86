"""What has happened: asks the tables of the archive and the live sessions. The commands are in inflight/cli/history.py."""
