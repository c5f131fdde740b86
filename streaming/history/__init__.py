"""Answers what has happened, from the archive or Kafka and the live sessions. The commands are in inflight/cli/history.py."""
