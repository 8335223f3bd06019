"""What `headrace demo` runs: one Pipeline over real photographs, and five Plans of it, from sequential to decode at scale.

scenes.py     the module: names the scene in a photograph
servers.py    a local image server with a stated delay, and a callback receiver
plans/        the five Plans; nothing else differs between the rungs
ladder.py     runs them one after the other, checks that their answers agree, and says what each step bought
"""
