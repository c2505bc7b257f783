//! Queries for which the host must be observed. Each is answered by a separate thread, so that other clients
//! need not wait.

use std::cell::Cell;
use std::fmt;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::{Map, Value};

use super::method::{Question, VarlinkError};
use crate::{Interest, Ready, Registrar, Source, Stay};

/// The maximum number of concurrent queries. Further queries are refused.
pub const JOBS_MAX: usize = 2;

/// A function that answers a query, however long that takes, and returns the parameters of the reply.
pub type QueryHandler = Arc<dyn Fn(&Question) -> Result<Map<String, Value>, VarlinkError> + Send + Sync>;

/// The answer to a query.
pub(super) type QueryResult = Result<Map<String, Value>, VarlinkError>;

/// A query that a thread is answering. The thread holds the other end of the pipe until it is done.
struct Job {
    done: PipeReader,
    answer: Receiver<QueryResult>,
    reply: Option<Box<dyn FnOnce(QueryResult) + Send>>,
    running: Rc<Cell<usize>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

/// Starts to answer a query. `reply` is called with the answer in a later turn of the event loop.
///
/// # Errors
/// If too many queries are in progress, or no thread can be created.
pub(super) fn start(
    question: Question,
    answer_query: &QueryHandler,
    running: &Rc<Cell<usize>>,
    registrar: &mut Registrar,
    reply: Box<dyn FnOnce(QueryResult) + Send>,
) -> Result<(), VarlinkError> {
    if running.get() >= JOBS_MAX || registrar.room() == 0 {
        return Err(VarlinkError::busy(format!("too many queries are running (limit {JOBS_MAX})")));
    }
    let (done, at_work) = std::io::pipe().map_err(|error| VarlinkError::busy(error.to_string()))?;
    let (sender, answer) = sync_channel(1);
    let answer_query = Arc::clone(answer_query);
    let work = move || {
        // Even if the query panics, this closes the pipe; there is then no answer.
        let _at_work = at_work;
        let _ = sender.send(answer_query(&question));
    };
    let thread = std::thread::Builder::new().name("question".to_owned());
    thread.spawn(work).map_err(|error| VarlinkError::busy(error.to_string()))?;
    running.set(running.get() + 1);
    registrar.admit(Box::new(Job { done, answer, reply: Some(reply), running: Rc::clone(running) }));
    Ok(())
}

impl Source for Job {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    fn interest(&mut self) -> Interest {
        Interest { read: true, ..Interest::default() }
    }

    fn ready(&mut self, _ready: Ready, _registrar: &mut Registrar) -> Stay {
        let found = self
            .answer
            .try_recv()
            .unwrap_or_else(|_| Err(VarlinkError::refused(1, "observing the host failed", None)));
        if let Some(reply) = self.reply.take() {
            reply(found);
        }
        Stay::Leave
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.running.set(self.running.get().saturating_sub(1));
    }
}
