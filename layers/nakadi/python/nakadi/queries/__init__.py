"""Queries with SQL: each runs in a child process that is a client of this broker, with the token of its caller.

This package starts such processes and limits them. It does not depend on SQL, the database, or permissions: the package
`nakadi_sql` answers the query, and the broker treats its requests like any other client's. Begin with `processes.py`.
"""
