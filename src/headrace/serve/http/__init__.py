"""The HTTP front: bytes <-> requests.

request.py     what a handler reads and answers
routes.py      which handler answers which path
limits.py      what a client may take up
connection.py  one connection: parse, hand over, answer
front.py       the thread and its listening socket
"""
