# Two commands for newcomers. Each installs what it needs and is missing, and leaves the rest to `cargo xtask`.

.PHONY: demo test setup install

demo:
	cargo xtask setup demo
	cargo xtask demo

# A shell lets what it starts in the background ignore Ctrl-C, nohup the end of a terminal, and so does everything that starts in turn: tests
# send both signals to programs.
test: setup
	env --default-signal=INT,QUIT,HUP cargo xtask test

# Below DESTDIR and PREFIX (/usr); starts and enables nothing.
install:
	cargo xtask install

setup:
	cargo xtask setup
