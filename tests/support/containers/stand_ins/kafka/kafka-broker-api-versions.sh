#!/bin/sh
# kafka-broker-api-versions.sh --bootstrap-server HOST:PORT: ends with 0 if the broker answers a request.
exec python - "$2" <<'PYTHON'
import sys

from kafka import KafkaAdminClient

KafkaAdminClient(bootstrap_servers=sys.argv[1], request_timeout_ms=5_000, bootstrap_timeout_ms=5_000).describe_cluster()
PYTHON
