//! A memcached of the lab that is asked all the time.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use linux::lab::{Lab, SERVER_ADDRESS};

use crate::operator::Operator;

/// Asks memcached over several connections at fixed times, whether or not it has answered.
fn ask(lab: &Lab, stop: &AtomicBool, every: Duration) -> Result<(), Failed> {
    const CONNECTIONS: u64 = 8;
    std::thread::scope(|scope| {
        let mut asking = Vec::new();
        for at in 0..CONNECTIONS {
            asking.push(scope.spawn(move || -> Result<(), Failed> {
                let address = SocketAddr::new(SERVER_ADDRESS.into(), 11_211);
                let connect = || -> Result<BufReader<TcpStream>, Failed> {
                    let stream = lab.client().run(|| TcpStream::connect(address))??;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                    Ok(BufReader::new(stream))
                };
                let mut due = Instant::now() + Duration::from_millis(at);
                let (mut connection, mut answer) = (None, String::new());
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    due = (due + every).max(Instant::now());
                    let open = match &mut connection {
                        Some(open) => open,
                        // It may be between its end and its next start.
                        none => match connect() {
                            Ok(open) => none.insert(open),
                            Err(_) => continue,
                        },
                    };
                    answer.clear();
                    let asked = open.get_mut().write_all(b"get nothing\r\n").is_ok()
                        && open.read_line(&mut answer).unwrap_or(0) > 0;
                    if !asked {
                        connection = None;
                    }
                }
                Ok(())
            }));
        }
        asking.into_iter().try_for_each(|asking| asking.join().map_err(|_| "a client panicked")?)
    })
}

/// What a body comes to while memcached is asked.
pub(crate) fn while_asked<T>(
    operator: &Operator,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    while_asked_every(operator, Duration::from_millis(8), body)
}

/// The same while each connection asks so long after it has asked before, and immediately where its answer took longer.
pub(crate) fn while_asked_every<T>(
    operator: &Operator,
    every: Duration,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&operator.lab, &stop, every));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| "the clients panicked")??;
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
