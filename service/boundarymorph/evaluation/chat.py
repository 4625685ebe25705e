"""A language model behind any OpenAI-compatible endpoint."""

from __future__ import annotations

import time

import httpx

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.remote.chat import PATH, completion
from boundarymorph.remote.wire import Unusable

ATTEMPTS = 4
BUSY = {408, 409, 425, 429, 500, 502, 503, 504}


class ChatFailed(BoundaryMorphError):
    """The endpoint did not give a usable answer."""


class Chat:
    """Greedy answers to single prompts. base_url: as OpenAI clients take it, usually ending in /v1; tokens: most that
    an answer may have; pause: seconds before the first repetition, doubled each time."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        tokens: int = 4_000,
        timeout: float = 120.0,
        pause: float = 1.0,
    ) -> None:
        self._model, self._tokens, self._pause = model, tokens, pause
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url.rstrip("/"), headers=headers, timeout=timeout)

    def __call__(self, prompt: str) -> str:
        """The answer. Raises ChatFailed; a busy or unreachable endpoint is asked again a few times first."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self._tokens,
        }
        trouble = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self._pause * 2 ** (attempt - 1))
            try:
                response = self._client.post(PATH, json=body)
            except httpx.TransportError as error:
                trouble = str(error) or type(error).__name__
                continue
            if response.status_code in BUSY:
                trouble = f"status {response.status_code}"
                continue
            if response.is_error:
                raise ChatFailed(f"the chat endpoint answered {response.status_code}: {response.text[:200]}")
            try:
                return completion(response.content).text
            except Unusable as error:
                raise ChatFailed(f"the chat endpoint's answer is no chat completion: {response.text[:200]}") from error
        raise ChatFailed(f"the chat endpoint gave no answer in {ATTEMPTS} attempts; last: {trouble}")

    def close(self) -> None:
        self._client.close()
