//! Periodic scans for new processes of services and for the first packets of servers.

use linux::process::pids;
use session::Fault;

use super::{Daemon, now};
use crate::reconciler::{HostEvent, Scope};
use crate::requests::Serves;

impl Daemon<'_> {
    /// Scans for new processes of services, and for the first packets of servers. The processes that it finds
    /// are observed next.
    pub(crate) fn scan(&mut self) -> Result<(), Fault> {
        let at = now();
        if !self.sources.sees_processes() {
            let running = pids()?.into_iter().collect();
            for pid in self.sources.scans().take_new(running, at) {
                if self.judge(pid, Serves::Unknown) {
                    self.sources.scans().settled(pid);
                    self.note(&HostEvent::Exec(pid), at);
                }
            }
        }
        for pid in self.sources.scans().take_servers() {
            let gone = !self.known.process(pid, Scope::Whole);
            if gone || plan::without_packets([pid], self.known.host()).next().is_none() {
                self.note(&HostEvent::Connection(pid), at);
            }
        }
        Ok(())
    }
}
