"""One page for a team: what runs, what changed, what broke, what was decided, what to do next; made of folders alone.

Begin with `kinds`, the table of what is found. `finding` looks for it, `reading` reads it, `answers` says in words what a lead
wants to know, `page` draws it, and `server` shows it in a browser.
"""
