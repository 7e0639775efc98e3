"""The lab by its ideas: the dumps of a session, fields, the request, and where a dump is loaded."""
