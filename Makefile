# Two commands for newcomers. Both install what is missing and leave the rest to `cargo xtask`.

.PHONY: demo test setup install

demo: setup
	cargo xtask demo

test: setup
	cargo xtask test

# Below DESTDIR and PREFIX (/usr); starts and enables nothing.
install:
	cargo xtask install

setup:
	cargo xtask setup
