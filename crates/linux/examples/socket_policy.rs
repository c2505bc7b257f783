//! A listener that requests short response times; a connection that it accepts inherits the request.
//! `examples/socket_policy.c` is the same in C.

use std::net::{TcpListener, TcpStream};

use linux::socket_policy;

/// `NET_POLICY_LATENCY` of `include/netpolicy.h`.
const LATENCY: i32 = 3;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints for the user who runs it")]
pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // If the kernel does not handle the option, the server continues without a policy.
    if let Err(errno) = socket_policy::set_socket(&listener, LATENCY) {
        eprintln!("no policy for the listener: {errno}");
    }
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (accepted, _) = listener.accept()?;
    let policy = |answer: Result<i32, linux::Errno>| answer.unwrap_or(-1);
    println!(
        "listener {} accepted {} client {}",
        policy(socket_policy::socket(&listener)),
        policy(socket_policy::socket(&accepted)),
        policy(socket_policy::socket(&client))
    );
    Ok(())
}
