"""``/rerank`` and its other names: how well documents fit a query, in Jina's or in TEI's form."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.embedding_runner import Tokens, evaluate
from mlxserver.api.errors import RequestFault, invalid_request, not_supported
from mlxserver.api.field_types import flag, integer, strings, text, value_or
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.request_bounds import MAX_PROMPTS, check_count
from mlxserver.api.state import ServerState
from mlxserver.models.model import Model

NO_RERANKING = "This server does not support reranking. Start it with `--reranking`"
_NO_DOCUMENTS = '"documents" must be a non-empty string array'


async def rerank(request: Request, state: ServerState) -> Response:
    """TEI's form where the documents are called ``texts``, else Jina's; best first."""
    if not state.options.embedding or state.options.pooling != "rank":
        raise not_supported(NO_RERANKING)
    body = await read_json(request)
    query, documents = _query(body), _documents(body)
    top_n = value_or(body, "top_n", integer(), len(documents))
    prompts = await aside(
        request, lambda: [rerank_prompt(state.model, query, document) for document in documents]
    )
    found = await evaluate(request, state, prompts)
    if found is None:
        return Response()
    if top_n < 0:
        raise RequestFault("vector::_M_default_append")  # what llama-server says of a negative size
    ranks = sorted(enumerate(vectors[0][0] for vectors in found), key=lambda rank: -rank[1])[:top_n]
    if "texts" in body:
        shown = documents if value_or(body, "return_text", flag, False) else None
        return json_response([_tei(index, score, shown) for index, score in ranks])
    model = value_or(body, "model", text, state.model_name)
    return json_response(_jina(model, ranks, sum(map(len, prompts))))


def rerank_prompt(model: Model, query: str, document: str) -> Tokens:
    """The model's own template, else both texts with those special tokens that the vocabulary adds."""
    tokenizer, template = model.tokenizer, model.info.rerank_template
    if template:
        texts = {"{query}": query, "{document}": document}
        filled = re.sub(r"\{query\}|\{document\}", lambda match: texts[match[0]], template)
        return tuple(tokenizer.encode(filled, parse_special=True))
    end_id = tokenizer.eos_id if tokenizer.eos_id >= 0 else tokenizer.sep_id
    end = [end_id] if tokenizer.add_eos else []
    return (
        *([tokenizer.bos_id] if tokenizer.add_bos else []),
        *tokenizer.encode(query, parse_special=False),
        *end,
        *([tokenizer.sep_id] if tokenizer.add_sep else []),
        *tokenizer.encode(document, parse_special=False),
        *end,
    )


def _query(body: Any) -> str:
    if not isinstance(body, dict) or "query" not in body:
        raise invalid_request('"query" must be provided')
    query = body["query"]
    if not isinstance(query, str):
        raise invalid_request('"query" must be a string')
    return query


def _documents(body: dict[str, Any]) -> tuple[str, ...]:
    texts = value_or(body, "texts", strings, ())
    documents: tuple[str, ...] = value_or(body, "documents", strings, texts)
    if not documents:
        raise invalid_request(_NO_DOCUMENTS)
    try:
        check_count(documents, MAX_PROMPTS)
    except ValueError as error:
        raise invalid_request(f'"documents": {error}') from None
    return documents


def _tei(index: int, score: float, documents: tuple[str, ...] | None) -> dict[str, Any]:
    rank: dict[str, Any] = {"index": index, "score": score}
    return rank if documents is None else rank | {"text": documents[index]}


def _jina(model: str, ranks: list[tuple[int, float]], n_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "results": [{"index": index, "relevance_score": score} for index, score in ranks],
    }
