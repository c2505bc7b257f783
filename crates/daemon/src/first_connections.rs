//! Listeners in other network namespaces. The next connection to each shows through which NAPI it receives.

use std::collections::{BTreeMap, BTreeSet};

use linux::bpf::process_events::{ListenedPort, NAMES_MAX};

/// The maximum number of connections to a port that are inspected between two ticks. A connection that ends
/// before it is inspected reveals no NAPI, so the daemon waits for the next one.
const LOOKS_MAX: u32 = 8;

/// The number of connections to each port since the last tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstConnections(BTreeMap<ListenedPort, u32>);

impl FirstConnections {
    /// Counts a new connection to a port.
    pub(crate) fn came(&mut self, port: ListenedPort) {
        *self.0.entry(port).or_default() += 1;
    }

    /// Resets the count of a port, because a new socket listens on it.
    pub(crate) fn listens(&mut self, port: ListenedPort) {
        self.0.remove(&port);
    }

    /// Resets all counts. Called at each tick.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// Selects the ports for which BPF reports the next connection; at most as many as the kernel's table
    /// holds.
    pub(crate) fn awaited(&self, ports: BTreeSet<ListenedPort>) -> BTreeSet<ListenedPort> {
        let few = |port: &ListenedPort| self.0.get(port).is_none_or(|came| *came < LOOKS_MAX);
        ports.into_iter().filter(few).take(NAMES_MAX).collect()
    }
}

#[cfg(test)]
mod test {
    use model::NetnsId;

    use super::*;

    #[test]
    fn a_port_whose_connections_show_nothing_is_left_until_the_next_tick() {
        let (busy, quiet) = ((NetnsId(7), 80), (NetnsId(7), 443));
        let ports = BTreeSet::from([busy, quiet]);
        let mut first = FirstConnections::default();
        for _ in 0..LOOKS_MAX {
            assert_eq!(first.awaited(ports.clone()), ports);
            first.came(busy);
        }
        assert_eq!(first.awaited(ports.clone()), BTreeSet::from([quiet]));
        let mut again = first.clone();
        again.forget();
        assert_eq!(again.awaited(ports.clone()), ports);
        first.listens(busy);
        assert_eq!(first.awaited(ports.clone()), ports, "another server may have replaced it");
    }

    #[test]
    fn no_more_are_awaited_than_the_table_holds() {
        let ports = (0..5_000).map(|port| (NetnsId(7), port)).collect();
        assert_eq!(FirstConnections::default().awaited(ports).len(), NAMES_MAX);
    }
}
