//! Provides the libraries that cap the timeout of an application's `epoll_wait` and that count its events:
//! where they are installed, and which programs cannot load them.
//!
//! Full busy polling needs an event loop that returns every millisecond, and the timeout of `epoll_wait` is
//! an argument that only the application itself can change. So the library works only for programs that are
//! started with the library in `LD_PRELOAD`, and not for those that are already running.
//!
//! The number of events that each `epoll_wait` returned is also known only to the program: the kernel does
//! not count it, and a tracepoint on system calls would slow down every call on the machine. [`EpollCounts`]
//! provides that number for programs that were started with the counting library.

mod counts;
mod elf;
mod install;
mod refusal;

pub use counts::{EpollCalls, EpollCounts};
pub use install::{Library, install};
pub use refusal::refusal;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use model::Nanoseconds;

/// The environment variable that tells [`Library::Cap`] the cap.
pub const CAP_VARIABLE: &str = "NETPOLICY_EPOLL_WAIT_CAP_US";
/// The environment variable with the libraries that the dynamic linker loads first. See ld.so(8).
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Returns the environment variables that start a program with [`Library::Cap`] and this cap, which is
/// rounded up to whole microseconds. Libraries that are already in `LD_PRELOAD` keep their place at the
/// front.
pub fn environment(
    library: &Path,
    cap: Nanoseconds,
    preloaded: Option<&OsStr>,
) -> [(&'static str, OsString); 2] {
    let micros = cap.0.div_ceil(1_000).to_string();
    [(PRELOAD_VARIABLE, libraries(library, preloaded)), (CAP_VARIABLE, micros.into())]
}

/// Returns `LD_PRELOAD` with another library appended.
fn libraries(library: &Path, preloaded: Option<&OsStr>) -> OsString {
    let mut libraries = preloaded.unwrap_or_default().to_owned();
    if !libraries.is_empty() {
        libraries.push(":");
    }
    libraries.push(library);
    libraries
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn libraries_that_are_preloaded_already_stay() {
        let library = Path::new("/run/netpolicy/epoll_cap.so");
        let [(_, alone), (_, cap)] = environment(library, Nanoseconds::from_millis(1), None);
        assert_eq!((alone.to_str(), cap.to_str()), (Some("/run/netpolicy/epoll_cap.so"), Some("1000")));
        let [(_, second), (_, cap)] = environment(library, Nanoseconds(1), Some(OsStr::new("/lib/first.so")));
        assert_eq!(
            (second.to_str(), cap.to_str()),
            (Some("/lib/first.so:/run/netpolicy/epoll_cap.so"), Some("1"))
        );
    }
}
