# irqbalance_bans [IRQ]: prints the interrupts that irqbalance is configured to leave alone. With IRQ,
# first removes that ban; the others stay.
irqbalance_bans() {
	python3 - "$@" <<-'END'
		import glob, socket, sys
		def ask(text):
		    for path in sorted(glob.glob("/run/irqbalance/irqbalance*.sock")):
		        with socket.socket(socket.AF_UNIX) as irqbalance:
		            irqbalance.settimeout(15)
		            try:
		                irqbalance.connect(path)
		            except ConnectionRefusedError:
		                continue
		            irqbalance.sendall(text.encode())
		            try:
		                return b"".join(iter(lambda: irqbalance.recv(65536), b"")).decode().split()
		            except ConnectionResetError:
		                sys.exit("irqbalance accepts no command this long")
		    sys.exit(3)
		def bans(length=0):
		    words = ask("setup".ljust(length))
		    if "BANNED" not in words:
		        sys.exit("irqbalance does not answer")
		    return [irq for word, irq in zip(words, words[1:]) if word == "IRQ"]
		now = bans()
		if len(sys.argv) > 1:
		    rest = "settings ban irqs " + (" ".join(irq for irq in now if irq != sys.argv[1]) or "NONE")
		    # irqbalance truncates a command that is too long, and would ban the truncated number: query the
		    # bans first.
		    bans(len(rest))
		    ask(rest)
		    now = bans()
		print(" ".join(now))
	END
}

# irqbalance_ban WHAT IRQ SET OLD: whether irqbalance leaves an interrupt alone.
irqbalance_ban() {
	now=$(irqbalance_bans) && code=0 || code=$?
	if [ "$code" = 3 ]; then
		printf '%s\n' "$1: gone"
		return
	elif [ "$code" != 0 ]; then
		stuck "$1" "irqbalance does not say what is banned"
		return
	fi
	case " $now " in *" $2 "*) now=on ;; *) now=off ;; esac
	if ours "$1" "$now" "$3" "$4"; then
		# netpolicy set the ban, so the undo removes it.
		case " $(irqbalance_bans "$2") " in *" $2 "*) now=on ;; *) now=off ;; esac
		seen "$1" "$now" "$4"
	fi
}
