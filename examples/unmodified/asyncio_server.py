"""An asyncio server with clients in its own loop, in a thread with another loop, and in a subprocess, all over TCP on loopback.

python asyncio_server.py --steps 100
"""

import argparse
import asyncio
import concurrent.futures
import json
import random
import sys
import threading

from digest import Digest, seed_all


async def serve(reader, writer):
    """Answer each line of numbers with their running mean, and remember it for this client."""
    mean, seen = 0.0, 0
    while line := await reader.readline():
        for number in json.loads(line):
            seen += 1
            mean += (number - mean) / seen
        writer.write(json.dumps([mean, seen]).encode() + b"\n")
        await writer.drain()
    writer.close()


async def talk(port, questions, answers):
    """One client: a question after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (question := await questions()) is not None:
        writer.write(json.dumps(question).encode() + b"\n")
        await answers(json.loads(await reader.readline()))
    writer.close()


async def standard_client(port):
    """A client whose questions come on standard input, and whose answers go to standard output."""
    loop = asyncio.get_running_loop()

    async def questions():
        line = await loop.run_in_executor(None, sys.stdin.readline)
        return json.loads(line) if line else None

    async def answers(found):
        print(json.dumps(found), flush=True)

    await talk(port, questions, answers)


class Client:
    """Asks from a loop of its own choice."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.questions, self.answers = asyncio.Queue(), asyncio.Queue()

    async def run(self, port):
        await talk(port, self.questions.get, self.answers.put)

    def ask(self, question):
        """The answer as a future of any other loop."""

        async def both():
            await self.questions.put(question)
            return await self.answers.get()

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(both(), self.loop))

    def end(self):
        self.loop.call_soon_threadsafe(self.questions.put_nowait, None)


class Process:
    """Asks through a subprocess."""

    def __init__(self, process):
        self._process = process

    async def ask(self, question):
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        return json.loads(await self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()


async def in_thread(port, made):
    client = Client()
    made.set_result(client)
    await client.run(port)


async def main(args):
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    near = Client()
    running = asyncio.create_task(near.run(port))
    made = concurrent.futures.Future()
    thread = threading.Thread(target=lambda: asyncio.run(in_thread(port, made)))
    thread.start()
    command = (sys.executable, __file__, "--port", str(port))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    clients = [near, await asyncio.wrap_future(made), Process(process)]

    digest = Digest()
    for _ in range(args.steps):
        drawn = [[random.gauss(0, 1) for _ in range(args.numbers)] for _ in clients]
        found = await asyncio.gather(*(client.ask(each) for client, each in zip(clients, drawn, strict=True)))
        digest.step(sum(mean for mean, _ in found))
    for client in clients:
        client.end()
    await running
    await process.wait()
    await asyncio.to_thread(thread.join)
    server.close()
    digest.finish([seen for _, seen in found])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--numbers", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="be a client of this port")
    arguments = parser.parse_args()
    seed_all(arguments.seed)
    asyncio.run(standard_client(arguments.port) if arguments.port else main(arguments))
