"""`make bench`: measures the whole path with sockets, with and without the fast path, then the shares of Spark and the session.

Each part can be run alone.
"""

import sys

from bench import end_to_end, engine

if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(
            "python -m bench takes no options; python -m bench.end_to_end --help and python -m bench.engine --help have some"
        )
    end_to_end.main(["--compare"])
    engine.main()
