"""What `headrace demo` runs: one Pipeline over real photographs under five Plans, from sequential to decode at scale; stories.

scenes.py     the module: names the scene in a photograph
servers.py    a local image server with a stated delay, and a callback receiver
plans/        the five Plans; nothing else differs between the rungs
workload.py   the queue and the pipeline of every rung, which `pipeline.py` in the demo's folder offers to other commands
ladder.py     runs them one after the other, checks that their answers agree, and says what each step bought
page.py       the page: what each step gained, what limits the last one, what to type next, and its run in detail
stories.py    finds and reads the stories of `headrace demo NAME`: `examples/stories`, in a wheel `demo/examples`
telling.py    tells one by typing its commands
pictures.py   what it draws
"""
