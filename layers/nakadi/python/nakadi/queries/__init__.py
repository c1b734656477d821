"""Queries with SQL: each runs in a child process that is a client of this broker, with the token of its caller.

This room starts and bounds such processes. It knows nothing of SQL, of the database, or of what a caller may read: the
package `nakadi_sql` answers the query, and the broker decides about its requests as about any other client's. Begin
with `processes.py`.
"""
