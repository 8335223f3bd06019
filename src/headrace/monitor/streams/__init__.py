"""What goes on in streams of frames, on a page of this machine: pictures, age, drops.

watching.py   what is known of each stream
server.py     the page, and what it asks for every second
"""
