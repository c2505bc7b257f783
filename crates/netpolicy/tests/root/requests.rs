//! Puts constant load on servers during other tests.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use linux::lab::{Lab, SERVER_ADDRESS};
use testkit::operator::Operator;

/// Opens a connection from the lab's client.
pub(crate) fn connect(lab: &Lab, port: u16) -> Result<TcpStream, Failed> {
    let address = SocketAddr::new(SERVER_ADDRESS.into(), port);
    let stream = lab.client().run(|| TcpStream::connect(address))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// Sends requests to memcached over several connections at fixed times, without waiting for answers.
fn ask(lab: &Lab, stop: &AtomicBool, every: Duration) -> Result<(), Failed> {
    const CONNECTIONS: u64 = 8;
    std::thread::scope(|scope| {
        let mut asking = Vec::new();
        for at in 0..CONNECTIONS {
            asking.push(scope.spawn(move || -> Result<(), Failed> {
                let mut due = Instant::now() + Duration::from_millis(at);
                let (mut connection, mut answer) = (None, String::new());
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    due = (due + every).max(Instant::now());
                    let open = match &mut connection {
                        Some(open) => open,
                        // The server may be restarting.
                        none => match connect(lab, 11_211) {
                            Ok(open) => none.insert(BufReader::new(open)),
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

/// Sends requests to memcached over one connection, each shortly after the previous answer. Without the
/// pause, both ends would use a whole CPU.
fn ask_in_turn(lab: &Lab, stop: &AtomicBool) -> Result<(), Failed> {
    const PAUSE: Duration = Duration::from_micros(300);
    let (mut connection, mut answer) = (BufReader::new(connect(lab, 11_211)?), String::new());
    while !stop.load(Ordering::Relaxed) {
        answer.clear();
        let asked = connection.get_mut().write_all(b"get nothing\r\n").is_ok()
            && connection.read_line(&mut answer).unwrap_or(0) > 0;
        if !asked {
            break; // the server has exited
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends requests to memcached over several connections at fixed times, each in a separate segment, without
/// waiting for answers.
pub(crate) fn ask_ahead(lab: &Lab, stop: &AtomicBool) -> Result<(), Failed> {
    const CONNECTIONS: usize = 8;
    const EVERY: Duration = Duration::from_micros(500);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = connect(lab, 11_211)?;
        connection.set_nonblocking(true)?;
        connections.push(connection);
    }
    let (mut due, mut answers) = (Instant::now(), [0; 4_096]);
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let connection: &mut TcpStream = &mut connections[turn % CONNECTIONS];
        match connection.write(b"get nothing\r\n") {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        while connection.read(&mut answers).is_ok_and(|bytes| bytes == answers.len()) {}
        due = (due + EVERY).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Sets the stop flag when dropped, even if an assertion fails: otherwise the scope would wait for its
/// threads forever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `body` while `load` runs on another thread, then sets the flag that stops `load`. Returns the result
/// of `body`, or the error of `load`.
pub(crate) fn beside<T>(
    load: impl FnOnce(&AtomicBool) -> Result<(), Failed> + Send,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| load(&stop));
        let stops = Stops(&stop);
        let result = body();
        drop(stops);
        let asked = asking.join().map_err(|_| "the load panicked")?;
        let result = result?;
        asked.map(|()| result)
    })
}

/// Returns the result of `body`, which runs while one client sends memcached requests, each shortly after the
/// previous answer.
pub(crate) fn while_asked_in_turn<T>(
    operator: &Operator,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    beside(|stop| ask_in_turn(&operator.lab, stop), body)
}

/// Returns the result of `body`, which runs while memcached is under load.
pub(crate) fn while_asked<T>(
    operator: &Operator,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    while_asked_every(operator, Duration::from_millis(8), body)
}

/// Returns the result of `body`, which runs while connections send a request at this interval, or later if
/// the previous answer takes longer.
pub(crate) fn while_asked_every<T>(
    operator: &Operator,
    every: Duration,
    body: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    beside(|stop| ask(&operator.lab, stop, every), body)
}
