"""Lab 13 in another style: a task per request, positions, wire text by hand, plain loops."""

from itertools import accumulate

DONE = b"data: [DONE]\n\n"


def gap(u, rate):
    """Seconds before a request of a Poisson process."""
    return math.log(1 / (1 - u)) / rate


def as_sent(**data):
    return ("data: " + json.dumps(data) + "\n\n").encode()


async def next_within(stream, seconds):
    """The next piece of a stream, in a list; an empty list at its end."""
    try:
        return [await asyncio.wait_for(anext(stream), seconds)]
    except StopAsyncIteration:
        return []


async def open_loop(send, uniforms, rate):
    if rate <= 0:
        raise ValueError(f"A rate is a number of requests per second above 0, not {rate}.")
    ### BEGIN SOLUTION
    clock = asyncio.get_running_loop().time

    async def one(number, due):
        await asyncio.sleep(max(0, due - clock()))
        return await send(number, due)

    _, *dues = accumulate((gap(u, rate) for u in uniforms), initial=clock())
    tasks = [asyncio.create_task(one(*request)) for request in enumerate(dues)]
    return [await task for task in tasks]
    ### END SOLUTION


class TextStream:
    def push(self, token_id):
        if self.has_stopped:
            return ""
        self.ids.append(token_id)
        ### BEGIN SOLUTION
        text = self.text = self.decode(self.ids)
        for end in range(self.shown, len(text)):
            if text.startswith(self.stop, end):
                self.has_stopped = True
                return self.show(end)
        end = len(text)
        while end and text[end - 1] == TORN:
            end -= 1
        for start in range(self.shown, end):
            if any(stop.startswith(text[start:end]) for stop in self.stop):
                return self.show(start)
        return self.show(end)
        ### END SOLUTION


async def sse(choices, head, usage=None):
    ### BEGIN SOLUTION
    failed = None
    while failed is None:
        try:
            choice = await anext(choices)
        except StopAsyncIteration:
            break
        except Exception as error:
            failed = error
        else:
            yield as_sent(choices=[choice], **head)
    if failed is not None:
        yield as_sent(**error_body(failed))
    elif usage is not None:
        yield as_sent(usage=usage(), choices=[], **head)
    yield DONE
    ### END SOLUTION


class RequestPool:
    async def stream(self, request):
        ### BEGIN SOLUTION
        self.queues[request.id] = asyncio.Queue()
        try:
            self.engine.submit(request)
            reason = None
            while reason is None:
                output = await self.queues[request.id].get()
                reason = "failed" if isinstance(output, Exception) else output.finish_reason
                if reason == "failed":
                    raise output
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            if reason is None:
                self.engine.abort(request.id)
            raise
        finally:
            self.queues.pop(request.id)
        ### END SOLUTION


class Admission:
    def admit(self, tokens):
        ### BEGIN SOLUTION
        room = self.target_ttft * self.prefill_rate - self.backlog
        if self.backlog > 0 and tokens > room:
            return min(tokens - room, self.backlog) / self.prefill_rate
        self.backlog = self.backlog + tokens
        return None
        ### END SOLUTION


class Router:
    def pick(self, hashes):
        ### BEGIN SOLUTION
        able = {i: one for i, one in enumerate(self.replicas) if one.is_healthy}
        if len(able) == 0:
            raise ServiceError("Every replica is out of order.")
        least = sorted(one.load for one in able.values())[0]
        able = {i: one for i, one in able.items() if one.load - least <= self.slack}
        for length in range(len(hashes), 0, -1):
            knowing = {i: one for i, one in able.items() if one.known.issuperset(hashes[:length])}
            if knowing:
                able = knowing
                break
        return sorted(able, key=lambda i: (able[i].load, able[i].served))[0]
        ### END SOLUTION


async def with_failover(open_stream, replicas, deadline):
    if not replicas:
        raise ValueError("There is no replica to try.")
    ### BEGIN SOLUTION
    clock = asyncio.get_running_loop().time
    latest, fault = clock() + deadline, None
    for replica in replicas:
        stream = open_stream(replica)
        try:
            piece = await next_within(stream, latest - clock())
            while piece:
                yield piece[0]
                fault = "begun"
                piece = await next_within(stream, None)
            return
        except ReplicaFault as error:
            if fault == "begun":
                raise
            fault = error
        finally:
            await stream.aclose()
    raise fault
    ### END SOLUTION


def percentile(values, p):
    if not values:
        raise ValueError("No value has a percentile.")
    ### BEGIN SOLUTION
    most = max(values)
    for value in values:
        if 100 * sum(other <= value for other in values) >= p * len(values):
            most = min(most, value)
    return most
    ### END SOLUTION


def goodput(served, slo, seconds):
    ### BEGIN SOLUTION
    good = 0
    for request in served:
        if not request.is_whole or request.first is None:
            continue
        late = request.first - request.due > slo.ttft
        slow = request.tokens > 1 and request.tpot > slo.tpot
        good += not (late or slow)
    return good / seconds
    ### END SOLUTION
