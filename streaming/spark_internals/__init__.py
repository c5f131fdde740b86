"""The one door to the parts of Spark and PySpark that are not their public interface.

No other package of Inflight touches the JVM, the frames of PySpark's worker, or the files of Spark in a checkpoint
(tests/unit/test_structure.py). Each module says with which PySpark versions it was tried, and what happens with others.
"""
