"""vLLM, on a CUDA device. Written from its documentation and not yet tried: it needs a GPU."""

from collections.abc import Sequence
from time import perf_counter

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from timing.peers.engine import Given, Ids, Served


class VLLM:
    """Its offline API returns once everything is done, so every token gets that time."""

    def __init__(self, given: Given) -> None:
        self.engine = LLM(
            str(given.folder), dtype=given.precision, enable_prefix_caching=False, max_num_seqs=256
        )

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        """Serve all requests. vLLM's scheduler decides how many run at a time; `size` is unused."""
        params = [
            SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True, detokenize=False)
            for limit in new_tokens
        ]
        start = perf_counter()
        tokens = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        answers = self.engine.generate(tokens, params, use_tqdm=False)
        end = perf_counter()
        outputs = [list(answer.outputs[0].token_ids) for answer in answers]
        return Served(start, outputs, [[end] * len(output) for output in outputs])
