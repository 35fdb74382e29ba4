# What a newcomer and CI run. Everything a target needs it installs itself, given a Rust toolchain.

# The server that tests and demo start: as set by the caller, else what `setup` found or fetched.
QUORLOCK_SERVER ?= $(shell cat .tools/server 2>/dev/null)
export QUORLOCK_SERVER

.PHONY: setup setup-versions demo test matrix fuzz bench soak mutants

setup:
	scripts/setup.sh

# Five local servers, two contenders, a node killed and a node paused.
demo: setup
	cargo run --quiet --release --features cli -- demo

# Every test: lints, unit, real servers, faults, command, documents.
test: setup-versions
	scripts/test.sh

setup-versions: setup
	scripts/setup.sh valkey redis5

# The tests that start real servers on every server version that can be had (ten minutes), or on one: ONLY=7.0.
matrix:
	scripts/matrix.sh $(if $(ONLY),ONLY=$(ONLY))

# Each fuzz target for SECONDS, or the one TARGET; RECORD=1 keeps count in fuzz/executions.tsv.
fuzz:
	SECONDS_EACH=$(or $(SECONDS),60) TARGET="$(TARGET)" RECORD="$(RECORD)" scripts/fuzz.sh

# Measures everything, beside a bare loop and beside other libraries, and writes BENCHMARKS.md. Half an hour, on a
# machine that has nothing else to do; `make bench MODE=quick` shows only that everything runs.
bench: setup
	scripts/bench.sh $(MODE)

# A million simulated schedules, or SCHEDULES=…; or SECONDS=…, a third of them simulated, the rest processes on real
# servers. Then a hundred thousand timeouts and cancels on real servers, or TIMEOUTS=….
soak: setup
	scripts/soak.sh $(if $(SECONDS),SECONDS=$(SECONDS),SCHEDULES=$(or $(SCHEDULES),1000000)) \
		TIMEOUTS=$(or $(TIMEOUTS),100000)

# Every way to get the protocol wrong that is known, and how soon the simulation sees it. WRITE=1 writes the table.
mutants:
	scripts/mutants.sh
