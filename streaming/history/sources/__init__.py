"""The sources of rows for questions: the tables of the archive (delta.py) and the topics of Kafka (kafka.py)."""
