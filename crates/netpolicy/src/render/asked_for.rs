//! Formats the requests of applications, for the output of `show`.

use std::collections::BTreeMap;

use model::host::{Process, Requester};
use model::{Fd, Host, Pid, PolicyName};
use session::page::{Cell, Table};

use super::count;
use crate::show::watchers;

/// Lists the requests, with one line for each requesting process, and for each epoll with requesting sockets.
pub(super) fn asked_for(host: &Host) -> Table {
    let mut table = Table::new(&["ASKED BY", "WHICH", "POLICY"]);
    let (mut tasks, mut sockets): (BTreeMap<Pid, u32>, BTreeMap<u64, u32>) = Default::default();
    for request in &host.app_requests {
        match request.of {
            Requester::Task(pid) => _ = tasks.entry(pid).or_insert(request.number),
            Requester::Socket(inode) => _ = sockets.insert(inode, request.number),
        }
    }
    for process in &host.processes {
        let own = tasks.get(&process.id.pid);
        let own = own.map(|number| ("itself, and its future children".to_owned(), *number));
        for (which, number) in own.into_iter().chain(of_sockets(&sockets, process)) {
            let policy = PolicyName::from_number(number);
            table.row([
                Cell::new(process.id.to_string()),
                Cell::new(which),
                Cell::new(policy.map_or_else(|| number.to_string(), |policy| policy.to_string())),
            ]);
        }
    }
    table
}

/// Returns the requests of a process's sockets. `asked` lists all requests by the socket's inode.
fn of_sockets(asked: &BTreeMap<u64, u32>, process: &Process) -> Vec<(String, u32)> {
    if asked.is_empty() {
        return Vec::new();
    }
    let watchers = watchers(process);
    let mut groups: BTreeMap<(Option<Fd>, u32), usize> = BTreeMap::new();
    for socket in &process.sockets {
        let Some(number) = asked.get(&socket.inode) else { continue };
        let watching = watchers.get(&socket.inode);
        let epolls = watching.into_iter().flatten().copied().map(Some);
        for epoll in epolls.chain(watching.is_none().then_some(None)) {
            *groups.entry((epoll, *number)).or_default() += 1;
        }
    }
    let described = |((epoll, number), sockets): ((Option<Fd>, u32), usize)| {
        let watched = epoll.map_or_else(|| "in no epoll".to_owned(), |fd| format!("of epoll {fd}"));
        (format!("{} {watched}", count(sockets, "socket")), number)
    };
    groups.into_iter().map(described).collect()
}

#[cfg(test)]
mod test {
    use model::host::AppRequest;
    use session::page::Page;

    use super::*;

    #[test]
    fn who_asks_is_shown_with_the_epoll_that_it_comes_to() {
        let mut host: Host =
            serde_json::from_str(include_str!("../../tests/hosts/cache-server.json")).expect("a host");
        let process = host.processes[0].clone();
        let watched = process.epolls[0].members[0].inode;
        host.app_requests = vec![
            AppRequest { of: Requester::Task(process.id.pid), number: 2 },
            AppRequest { of: Requester::Socket(watched), number: 3 },
            AppRequest { of: Requester::Socket(u64::MAX), number: 3 },
        ];
        let mut page = Page::new(false);
        page.table(&asked_for(&host));
        let text = page.into_text();
        let of_epoll = format!("1 socket of epoll {}", process.epolls[0].id.fd);
        assert!(text.contains("itself, and its future children  bulk"), "{text}");
        assert!(text.contains(&of_epoll) && text.contains("latency"), "{text}");
        assert_eq!(text.lines().count(), 3, "no process here holds the third socket: {text}");
    }
}
