# Commands for newcomers. Each installs what is missing, and calls `cargo xtask`.

.PHONY: demo test test-all setup install

demo:
	cargo xtask setup demo
	cargo xtask demo

# A shell starts background jobs with Ctrl-C ignored, and nohup with SIGHUP ignored; all descendants inherit that. Tests
# send both signals to programs.
xtask = env --default-signal=INT,QUIT,HUP cargo xtask

# Before each commit. `make test PART=plan` runs the tests of one crate, `make test PART=watched/` the tests whose names
# contain this.
test: setup
	$(xtask) test $(PART)

# Everything: guests, the kernel's own tests, packages, the oldest Rust, more kills of benches at random moments. CI runs this.
test-all: setup
	NETPOLICY_TEST_KILLS=25 $(xtask) test-all

# Installs below DESTDIR and PREFIX (/usr); starts and enables nothing.
install:
	cargo xtask install

setup:
	cargo xtask setup
