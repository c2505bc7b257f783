# netdev napi IFINDEX QUEUE | get NAPI ATTRIBUTE | set NAPI ATTRIBUTE VALUE: queries the kernel's
# netdev family for the NAPI that polls a receive queue, or reads or sets a setting of a NAPI, for
# which there is no file. Debian's perl is essential; without perl, or if the variable YNL is set, the
# kernel's tools/net/ynl is used.
netdev() {
	if [ -n "${YNL:-}" ] || ! command -v perl >/dev/null; then
		netdev_by_ynl "$@"
	else
		netdev_by_perl "$@"
	fi
}

# netdev_by_perl ...: the same, with the messages of linux/netlink.h, linux/genetlink.h and linux/netdev.h.
netdev_by_perl() {
	perl - "$@" <<-'END'
		use strict;
		my ($do, @of) = @ARGV;
		my %number = ("pid" => 4, "defer-hard-irqs" => 5, "gro-flush-timeout" => 6, "irq-suspend-timeout" => 7, "threaded" => 8);
		my %threaded = ("disabled" => 0, "enabled" => 1, "busy-poll" => 2);
		my ($AF_NETLINK, $SOCK_RAW, $NETLINK_GENERIC, $NLMSG_ERROR, $NLMSG_DONE) = (16, 3, 16, 2, 3);
		my ($NLM_F_REQUEST, $NLM_F_ACK, $NLM_F_DUMP) = (1, 4, 768);
		my ($GENL_ID_CTRL, $CTRL_CMD_GETFAMILY, $FAMILY_ID, $FAMILY_NAME) = (16, 3, 1, 2);
		my ($QUEUE_GET, $NAPI_GET, $NAPI_SET) = (10, 11, 14);
		socket(my $kernel, $AF_NETLINK, $SOCK_RAW, $NETLINK_GENERIC) or die "netlink: $!\n";

		sub attribute { my ($type, $value) = @_; pack("SS a* x!4", 4 + length $value, $type, $value) }

		# An integer of any length that the kernel writes.
		sub integer { my ($value) = @_; unpack({ 1 => "C", 2 => "S", 4 => "L", 8 => "Q" }->{length $value}, $value) }

		# All answers to a request, each as its attributes by their numbers.
		sub ask {
		    my ($family, $command, $flags, @attributes) = @_;
		    my $body = pack("CCS", $command, 1, 0) . join("", @attributes);
		    my $head = pack("LSSLL", 16 + length $body, $family, $NLM_F_REQUEST | $flags, 1, 0);
		    send($kernel, $head . $body, 0) or die "netlink: $!\n";
		    my @found;
		    while (defined recv($kernel, my $bytes, 65536, 0)) {
		        while (length $bytes >= 16) {
		            my ($length, $type) = unpack("LS", $bytes);
		            my $object = substr($bytes, 16, $length - 16);
		            $bytes = substr($bytes, $length) . "";
		            if ($type == $NLMSG_ERROR || $type == $NLMSG_DONE) {
		                return @found unless $! = -unpack("l", $object);
		                die "netdev: $!\n";
		            }
		            push @found, {};
		            for ($object = substr($object, 4); length $object >= 4;) {
		                my ($length, $number) = unpack("SS", $object);
		                $found[-1]{$number} = substr($object, 4, $length - 4);
		                $length = ($length + 3) & ~3;
		                $object = $length < length $object ? substr($object, $length) : "";
		            }
		        }
		    }
		    die "netlink: $!\n";
		}

		my ($family) = ask($GENL_ID_CTRL, $CTRL_CMD_GETFAMILY, $NLM_F_ACK, attribute($FAMILY_NAME, "netdev\0"));
		my $netdev = integer($family->{$FAMILY_ID});
		if ($do eq "napi") {
		    my ($ifindex, $queue) = @of;
		    # Attributes of a queue: its id, device, type (0 receives) and NAPI.
		    my @of_device = attribute(2, pack("L", $ifindex));
		    my ($found) = ask($netdev, $QUEUE_GET, $NLM_F_ACK, attribute(1, pack("L", $queue)), @of_device, attribute(3, pack("L", 0)));
		    my $id = $found->{4};
		    # If the driver does not report the NAPIs of queues, as for a veth, NAPIs are in the order of
		    # the queues, provided that there is one for each queue.
		    unless (defined $id) {
		        my @queues = grep { !integer($_->{3}) } ask($netdev, $QUEUE_GET, $NLM_F_DUMP, @of_device);
		        my @napis = map { integer($_->{2}) } ask($netdev, $NAPI_GET, $NLM_F_DUMP, attribute(1, pack("L", $ifindex)));
		        @napis = sort { $a <=> $b } @napis;
		        exit if @napis != @queues || grep { defined $_->{4} } @queues;
		        $id = pack("L", $napis[$queue]);
		    }
		    print integer($id), "\n";
		    exit;
		}
		my ($napi, $name, $value) = @of;
		my $id = attribute(2, pack("L", $napi));
		if ($do eq "set") {
		    $value = $threaded{$value} if $name eq "threaded";
		    ask($netdev, $NAPI_SET, $NLM_F_ACK, $id, attribute($number{$name}, pack($value < 1 << 32 ? "L" : "Q", $value)));
		    exit;
		}
		my ($settings) = ask($netdev, $NAPI_GET, $NLM_F_ACK, $id);
		my $found = $settings->{$number{$name}};
		exit unless defined $found;
		$found = integer($found);
		$found = { reverse %threaded }->{$found} if $name eq "threaded";
		print "$found\n";
	END
}

# netdev_by_ynl ...: like netdev_by_perl.
netdev_by_ynl() {
	case $1 in
	napi) ynl queue-get "{\"ifindex\": $2, \"id\": $3, \"type\": \"rx\"}" | field napi-id ;;
	get) ynl napi-get "{\"id\": $2}" | field "$3" ;;
	set)
		case $4 in
		*[!0-9]*) ynl napi-set "{\"id\": $2, \"$3\": \"$4\"}" ;;
		*) ynl napi-set "{\"id\": $2, \"$3\": $4}" ;;
		esac >/dev/null
		;;
	esac
}

# ynl OPERATION JSON: one request.
ynl() {
	command "${YNL:-ynl}" --family netdev --output-json --do "$1" --json "$2"
}

# field NAME: the value of a field of one JSON object of numbers and words.
field() {
	sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# napi WHAT DEVICE QUEUE ATTRIBUTE SET OLD: a setting of the NAPI that polls a receive queue. The
# NAPI's id changes when the device is reset, so it is looked up each time.
napi() {
	directory=$(device_directory "$2")
	if [ -z "$directory" ]; then
		printf '%s\n' "$1: gone"
		return
	fi
	id=$(netdev napi "$(device_index "$2")" "$3")
	if [ -n "$id" ]; then
		if ours "$1" "$(netdev get "$id" "$4")" "$5" "$6"; then
			netdev set "$id" "$4" "$6"
			seen "$1" "$(netdev get "$id" "$4")" "$6"
		fi
	elif ! [ -e "$directory/queues/rx-$3" ]; then
		stuck "$1" "there is no such queue now: bring it back (ethtool -L), then run this again"
	else
		stuck "$1" "no NAPI found: the device is down, or there is neither perl nor ynl"
	fi
}
