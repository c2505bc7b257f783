//! The thread that serves the sockets. The daemon's own thread inspects processes, plans and commits. If a
//! user has thousands of epolls, this takes seconds, and status queries must not wait for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::io::Errno;

use super::{ApiOptions, OpenError, open};
use crate::event_loop::EventLoop;
use crate::status::Shared;

/// The number under which the event loop reports [`Shared::changed`].
const CHANGED: u32 = 0;

/// A thread that serves the sockets until this value is dropped.
#[derive(Debug)]
pub struct Serving {
    shared: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Opens the sockets and serves them in a new thread, which is in the caller's namespaces.
    ///
    /// # Errors
    /// As for [`open`], or if a thread or an epoll cannot be created.
    pub fn begin(shared: &Shared, options: ApiOptions) -> Result<Self, OpenError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (opened, is_open) = sync_channel(1);
        let thread = {
            let (shared, stop) = (shared.clone(), Arc::clone(&stop));
            let work = move || serve(shared, options, &stop, &opened);
            std::thread::Builder::new().name("api".to_owned()).spawn(work).map_err(OpenError::Thread)?
        };
        let serving = Self { shared: shared.clone(), stop, thread: Some(thread) };
        is_open.recv().unwrap_or_else(|_| Err(OpenError::Thread(io::Error::other("it ended"))))?;
        Ok(serving)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.shared.changed().ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// On drop, notifies the daemon that the thread has exited, whatever the reason.
struct Ending(Shared);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end_api();
    }
}

fn serve(shared: Shared, options: ApiOptions, stop: &AtomicBool, opened: &SyncSender<Result<(), OpenError>>) {
    let ending = Ending(shared);
    let shared = &ending.0;
    let mut event_loop = match begin(shared, options) {
        Ok(event_loop) => event_loop,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    while !stop.load(Ordering::Acquire) {
        if event_loop.wait(None).is_err() {
            return;
        }
        shared.changed().silence();
    }
    // Write the last answers, as far as the clients read them without delay.
    let _ = event_loop.wait(Some(Instant::now()));
}

fn begin(shared: &Shared, options: ApiOptions) -> Result<EventLoop, OpenError> {
    let failed = |errno: Errno| OpenError::Thread(errno.into());
    let mut event_loop = EventLoop::new().map_err(failed)?;
    event_loop.watch(shared.changed(), CHANGED).map_err(failed)?;
    for source in open(shared, options)? {
        event_loop.admit(source).map_err(failed)?;
    }
    Ok(event_loop)
}
