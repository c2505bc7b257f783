//! The worker process: answers one request after another on its standard input, until the input is closed.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;

use apply::Knobs;
use linux::{Kernel, KernelError, Netns, attach, process};
use model::Pid;
use session::Exit;

use super::{Answer, REQUEST_BYTES_MAX, Request};
use crate::api::wire::encode;

/// The socket on which the worker announces each process that it is about to inspect.
static CLIENT: OnceLock<UnixStream> = OnceLock::new();

/// Serves until the client closes the socket.
///
/// # Errors
/// If standard input is not a socket.
pub fn serve() -> io::Result<Exit> {
    // Close the descriptors that the worker inherited from the program that started it: an abandoned worker
    // would keep them open.
    attach::close_inherited();
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let _ = CLIENT.set(stream.try_clone()?);
    attach::before_each_process(say);
    let mut kernel = Kernel::new();
    let mut rest: Vec<u8> = Vec::new();
    let mut part = vec![0; 64 * 1024];
    loop {
        let Some(end) = rest.iter().position(|&byte| byte == 0) else {
            match stream.read(&mut part)? {
                0 => return Ok(Exit::Done),
                _ if rest.len() > REQUEST_BYTES_MAX => return Ok(Exit::Failed),
                length => rest.extend_from_slice(&part[..length]),
            }
            continue;
        };
        let after = rest.split_off(end + 1);
        let message = std::mem::replace(&mut rest, after);
        let Ok(request) = serde_json::from_slice(&message[..end]) else { return Ok(Exit::Failed) };
        stream.write_all(&encode(&answer(request, &mut kernel)))?;
    }
}

fn say(process: Pid) {
    if let Some(mut client) = CLIENT.get() {
        // Ignore an error: if the client is gone, this process exits when it sends the answer.
        let _ = client.write_all(&encode(&Answer::At(process)));
    }
}

fn answer(request: Request, kernel: &mut Kernel) -> Answer {
    let failed = |error: KernelError| Answer::Failed(error.into());
    match request {
        Request::Processes { netns, pids, networking } => match Netns::at(Path::new(&netns)) {
            Err(error) => failed(error),
            Ok(netns) => {
                let mut unread = Vec::new();
                let found = linux::observe::processes_among(&netns, &pids, networking, &mut unread);
                Answer::Processes { found, unread }
            }
        },
        Request::AfXdp { cookie, pids } => Answer::Holders(process::holders_of_af_xdp_among(cookie, &pids)),
        Request::Epolls(process) => process::epolls_of(&process).map_or_else(failed, Answer::Epolls),
        Request::Same(a, b) => Answer::Same(process::same_epoll(a, b)),
        Request::Read(like) => match kernel.read(&[like]).map(|mut found| found.pop()) {
            Ok(Some(value)) => Answer::Value(value),
            Ok(None) => failed(KernelError::malformed("a knob", "nothing was read")),
            Err(error) => failed(error),
        },
        Request::Write(setting) => match kernel.write(&[setting]) {
            Ok(()) => Answer::Written,
            Err(error) => failed(error),
        },
    }
}
