"""A service of coroutines, as a uvicorn worker runs it."""

import os
import re

import fastapi
import redis.asyncio

CACHE = redis.asyncio.Redis.from_url(os.environ["SHOP_REDIS"])
NAME = re.compile(r"([a-z]+)*$")
app = fastapi.FastAPI()


@app.get("/suggest")
async def suggest():
    """What is asked for all the time."""
    return {"price": str(await CACHE.get("price:7"))}


@app.get("/search")
async def search():
    return {"is_name": is_name("honestlynowherenear!")}


def is_name(words):
    return bool(NAME.match(words))  # cause: regex
