# Asks the server, a new connection every hundred requests, until the file $ARGV[2] is there or a minute has passed. Prints how
# many requests it made and how many failed: refused, answered wrongly, or not within two seconds.
use strict;
use warnings;
use IO::Socket::INET;

my ($requests, $failed, $socket) = (0, 0);
$SIG{ALRM} = sub { die "late\n" };
$SIG{PIPE} = 'IGNORE';
for (my $end = time + 60; time < $end && !-e $ARGV[2]; $requests++) {
	my $answered = eval {
		alarm 2;
		if ($requests % 100 == 0 || !$socket) {
			$socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 2) or die "connect\n";
		}
		syswrite($socket, "request $requests\n") or die "write\n";
		sysread($socket, my $answer, 4096);
		$answer eq "request $requests\n";
	};
	alarm 0;
	unless ($answered) {
		$failed++;
		undef $socket;
	}
	select(undef, undef, undef, 0.001);
}
print "requests $requests failed $failed\n";
