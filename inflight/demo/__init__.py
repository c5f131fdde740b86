"""`inflight demo`: real devices with bad manners, a killed engine, and a count of what arrived."""
