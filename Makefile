# The recipes live in scripts/, so that people and CI call the same ones.
.PHONY: setup model run test lint bench conformance
MAKEFLAGS += --no-print-directory

setup:        ## the environment in .venv
	@scripts/setup

model: setup  ## fetches SmolLM2-135M-Instruct; the last line is the file's path
	@scripts/model

run: setup    ## serves that model on 127.0.0.1:8080
	@scripts/run $(ARGS)

test: setup   ## unit tests, import test, tests on the real model, conformance cases
	@scripts/test

lint: setup   ## ruff, mypy, known vulnerabilities of dependencies
	@scripts/lint

bench: setup  ## plays workloads at mlxserver, mlx_lm.server and, with --llama-server in ARGS, llama-server
	@scripts/bench $(ARGS)

conformance: setup  ## the conformance cases; CONFORMANCE is the kit's folder
	@scripts/conformance $(ARGS)
