# Two commands for newcomers. Both install what is missing and leave the rest to `cargo xtask`.

.PHONY: demo test setup

demo: setup
	cargo xtask demo

test: setup
	cargo xtask test

setup:
	cargo xtask setup
