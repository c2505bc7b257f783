# Commands for newcomers. Each installs what it needs and is missing, and leaves the rest to `cargo xtask`.

.PHONY: demo test test-all setup install

demo:
	cargo xtask setup demo
	cargo xtask demo

# A shell lets what it starts in the background ignore Ctrl-C, nohup the end of a terminal, and so does everything that starts in turn: tests
# send both signals to programs.
xtask = env --default-signal=INT,QUIT,HUP cargo xtask

# Before each commit. `make test PART=plan` runs the tests of one crate, `make test PART=watched/` those with this in their names.
test: setup
	$(xtask) test $(PART)

# Everything: guests, the kernel's own tests, packages, the oldest Rust. CI runs this.
test-all: setup
	$(xtask) test-all

# Below DESTDIR and PREFIX (/usr); starts and enables nothing.
install:
	cargo xtask install

setup:
	cargo xtask setup
