"""The query `archive`: Kafka → Delta tables, each row once (docs/operate/archive.md)."""
