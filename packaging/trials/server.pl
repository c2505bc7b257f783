# Answers every line with itself, for as many clients as come, until it is ended.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

my $listening = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 16, ReuseAddr => 1)
	or die "listen: $!";
my $select = IO::Select->new($listening);
while (my @ready = $select->can_read) {
	for my $socket (@ready) {
		if ($socket == $listening) {
			$select->add($listening->accept);
		} elsif (sysread($socket, my $line, 4096)) {
			syswrite($socket, $line);
		} else {
			$select->remove($socket);
			close $socket;
		}
	}
}
