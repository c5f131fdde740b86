"""Where the rows of a question come from: the tables of the archive (delta.py), or the topics of Kafka (kafka.py)."""
