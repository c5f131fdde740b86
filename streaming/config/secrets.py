"""Tells secrets from what may be shown: in `inflight config`, in error messages, in flags that every user of a machine can read.

The keys of Inflight say themselves whether they are secret. Options of Kafka's and Spark's clients are free names with free
values, so only options that are known to be harmless are shown.
"""

import re
from typing import Final

_SECRET: Final = re.compile(
    r"""(?ix) passw(or)?d(?!_file) | passphrase | secret | jaas | token\b | credentials(?![.]provider) | signature
    | (access|account|private|encryption|storage|keystore) [._]? key (?![._]?id\b) | [._]key$
    | [._]sas[._] | user[._]info | connection[._]?string"""
)
_HARMLESS_ENDING: Final = re.compile(
    r"""(?x) (^|[._]) (ms|bytes|kb|mb|size|memory|memoryOverhead|cores|instances|enabled?|interval|timeout|retries|max|min|amount
    |parallelism|partitions|type|protocol|mechanisms?|algorithm|provider|location|cafile|certfile|keyfile|impl|class|endpoint|region
    |name|namespace|master|mode|host|port|bindAddress|id|rack|acks|idempotence)$"""
)
_HARMLESS_START: Final = re.compile(
    r"""(?x) spark[.] (sql|kubernetes|scheduler|shuffle|task|speculation|locality|dynamicAllocation|databricks[.]delta)[.]
    (?!catalog[.] | .*Env[.])"""
)
"""Catalogs and environments have names and values of other programs."""


def names_a_secret(text: str) -> bool:
    """Returns True if a key, an option of Kafka or Spark, or a table in JSON has the name of a secret. Rather once too often."""
    return bool(_SECRET.search(text))


def is_harmless_option(name: str) -> bool:
    """Returns True if an option of Kafka or Spark is known to have no secret in its value."""
    is_known = _HARMLESS_ENDING.search(name) or _HARMLESS_START.match(name)
    return bool(is_known) and not names_a_secret(name)
