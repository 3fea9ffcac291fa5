.DEFAULT_GOAL := help
SHELL := bash
CARGO ?= cargo

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: toolchain ## Build target/release/palisade (and kubectl-palisade beside it)
	$(CARGO) build --locked --release -p palisade
	@ln -sf palisade target/release/kubectl-palisade

.PHONY: run
run: not-running build control-plane ## Start a real API server on this machine, guarded by Palisade (Ctrl-C stops it)
	$(CARGO) build --locked --release -p palisade-testkit --bin local-cluster
	@exec setpriv --pdeathsig TERM -- target/release/local-cluster .run target/release/palisade

.PHONY: not-running
not-running:
	@mkdir -p .run && flock -n .run/lock true || { echo "make run: another one is running here; stop it with Ctrl-C first" >&2; exit 1; }

.PHONY: test
test: toolchain control-plane ## Everything: format, lints, unit, generated files, end-to-end on a real API server
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) build --locked -p palisade
	# About a minute of fuzzing among them; `cargo test` alone gives each target a second.
	BOLERO_RANDOM_TEST_TIME_MS=9000 $(CARGO) test --locked --workspace --exclude palisade-e2e
	hack/generate.sh --check
	$(CARGO) test --locked -p palisade-e2e --test e2e -- --test-threads=6
	$(CARGO) test --locked -p palisade-e2e --test rights

.PHONY: bench
bench: build control-plane ## Measure, and write the report to stdout and bench/results/
	$(CARGO) run --locked --release -p palisade-bench

.PHONY: generate
generate: toolchain ## Write the generated files again (docs/reference, deploy)
	hack/generate.sh

.PHONY: control-plane
control-plane: ## Build the pinned control plane into the user's cache; its folder is the last line
	@hack/control-plane/build.sh

.PHONY: toolchain
toolchain:
	@hack/toolchain.sh

.PHONY: clean
clean: ## Remove what was built here (the control plane's cache stays)
	$(CARGO) clean
	rm -rf .run
