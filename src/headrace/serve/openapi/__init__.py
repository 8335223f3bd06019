"""What a service tells of its routes at `/openapi.json`.

operations.py  one row for each route that a service may have
schemas.py     what goes in and out
document.py    both as an OpenAPI document of the routes that a service has
"""
