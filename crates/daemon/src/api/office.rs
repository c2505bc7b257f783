//! The state that all sources of the API share, and the reasons why a socket could not be opened.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use linux::peer::UnixPeer;

use super::connection_stats::ConnectionStats;
use super::job::QueryHandler;
use crate::Shared;
use crate::sessions::Sessions;
use crate::socket_file::ListenError;

/// State shared by all connections.
pub(super) struct Office {
    pub(super) shared: Shared,
    pub(super) stats: Rc<ConnectionStats>,
    pub(super) group: Option<u32>,
    pub(super) answer_query: QueryHandler,
    pub(super) jobs: Rc<Cell<usize>>,
    pub(super) sessions: Sessions,
}

impl Office {
    /// Whether this client may see and change everything.
    pub(super) fn trusts(&self, peer: &UnixPeer) -> bool {
        peer.uid == 0 || self.group.is_some_and(|group| peer.groups.contains(&group))
    }
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Office")
            .field("stats", &self.stats)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No socket can be created at the path.
    #[error(transparent)]
    NoPlace(#[from] ListenError),
    /// The kernel refused.
    #[error("{path}: {error}")]
    Refused {
        /// The path or address that could not be opened.
        path: String,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// The thread or its event loop could not be created.
    #[error("the sockets' thread: {0}")]
    Thread(std::io::Error),
    /// Metrics are served on loopback addresses only.
    #[error("{0}: metrics are served only on loopback addresses (127.0.0.1, ::1)")]
    NotLoopback(SocketAddr),
}

pub(super) fn refused(path: impl fmt::Display) -> impl FnOnce(std::io::Error) -> OpenError {
    move |error| OpenError::Refused { path: path.to_string(), error }
}
