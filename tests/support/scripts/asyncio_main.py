import asyncio


async def main():
    await asyncio.sleep(0)
    print("awaited")
    raise KeyError("from a coroutine")


asyncio.run(main())
