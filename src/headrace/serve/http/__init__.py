"""The HTTP front: bytes <-> requests.

request.py     what a handler reads and answers
routes.py      which handler answers which path
limits.py      what a client may take up
head.py        a request's head, read by llhttp
body.py        a request's body while it comes; bodies.py: the buffers for it
reading.py     bytes -> requests, one after another
wire.py        answers -> bytes
connection.py  one connection: receive, hand over, answer
listening.py   the listening socket, TLS
front.py       the thread and its loop
"""
