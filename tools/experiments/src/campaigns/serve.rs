//! `bench serve`: the server of the benches as a separate process.

use std::sync::atomic::AtomicBool;

use load::server::{ServeError, ServerOptions, Service, listen_on, serve};
use session::{Exit, Fault};

use crate::Context;
use crate::bench::describe;
use crate::bench::exchange_args::Serve;
use crate::machines;
use crate::machines::host::{self, Connection};
use crate::machines::token::Token;

/// Serves until a signal ends the process, or serves the requests of a client on another machine.
pub(super) fn run(arguments: &Serve, context: &Context<'_>) -> Result<Exit, Fault> {
    let listen = match (arguments.listen, &arguments.token) {
        (None, _) => return host::serve(context, Connection::stdio()?),
        (Some(_), Some(token)) if arguments.accepted => {
            return host::serve(context, Connection::accepted(&Token::read(token)?)?);
        }
        (Some(listen), Some(token)) => return machines::listen::listen(context, listen, token),
        (Some(listen), None) => listen,
    };
    if let Some(cpus) = &arguments.cpus {
        linux::process::pin_this_thread(cpus)?;
    }
    let service = match &arguments.storage {
        Some(path) => Service::Storage { path: path.clone(), writable: arguments.writable },
        None => {
            let bytes = if arguments.udp { 64 } else { 1 };
            let (request_bytes, answer_bytes) =
                arguments.size.map_or((bytes, bytes), |size| (size.request, size.answer));
            let service_time = arguments.service_time;
            if arguments.udp {
                Service::Datagrams { request_bytes, answer_bytes, service_time }
            } else {
                Service::Exchange { request_bytes, answer_bytes, service_time }
            }
        }
    };
    let options = ServerOptions {
        threads: arguments.threads,
        wait_at_most: arguments.wait_at_most,
        in_a_row: arguments.in_a_row,
        service,
    };
    // Check before a client can connect, because the client may rely on it.
    options.check().map_err(fault)?;
    let listener = listen_on(listen, &options).map_err(fault)?;
    serve(listener, &options, &AtomicBool::new(false)).map_err(fault)?;
    Ok(Exit::Done)
}

fn fault(error: ServeError) -> Fault {
    match error {
        ServeError::Option { option, value, range } => {
            Fault::new(Exit::Usage, describe(option, "--size", &value.to_string(), &range))
        }
        ServeError::NoExactWait => Fault::new(Exit::Unsupported, error),
        ServeError::Listen { .. } | ServeError::Open { .. } | ServeError::Kernel { .. } => {
            Fault::failed(error)
        }
    }
}
