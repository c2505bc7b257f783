//! Tests which paths into another network namespace preserve the NAPI id of the host's device, so that an
//! epoll in that namespace can suspend the device's interrupt. The tests check the NAPIs that sockets report
//! and the number of polled packets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::observe::processes;
use linux::{Netns, Processes, process};
use model::host::Process;
use model::{EmptyPolls, EpollParams, Nanoseconds, NapiId};
use netlink::netdev::{NapiChange, Netdev};
use testkit::scratch::Scratch;
use testkit::subject::{Subject, eventually};
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const ROUTED: &[Need] = &[Need::Root, Need::Wire, Need::Memcached];
    const PEER: &[Need] = &[Need::Root, Need::Wire, Need::Memcached, Need::TcBpf];
    const PEER_OF_NIC: &[Need] = &[Need::Root, Need::Wire, Need::Memcached, Need::TcBpf, Need::VirtioNics];
    const MACVLAN: &[Need] = &[Need::Root, Need::Wire, Need::Memcached, Need::Link("link v0 type macvlan")];
    vec![
        test("paths/a_veth_that_the_host_routes_to_loses_the_napi", ROUTED, routed),
        test("paths/redirect_peer_keeps_the_napi_and_a_pods_epoll_polls_it", PEER, redirected),
        test("paths/redirect_peer_keeps_the_napi_of_a_nic_and_a_pods_epoll_polls_it", PEER_OF_NIC, of_nic),
        test("paths/a_macvlan_keeps_the_napi_and_a_pods_epoll_polls_it", MACVLAN, macvlan),
    ]
}

/// The number of requests that are answered while polls are counted.
const REQUESTS: usize = 2000;
/// The minimum number of packets that the pod's `epoll_wait` must poll if the path preserves the NAPI.
const POLLED_MIN: u64 = 200;
/// How long the pod busy-polls. This must be longer than a request takes between emulated CPUs: packets that
/// arrive later are not polled.
const POLLS_FOR: Duration = Duration::from_millis(5);
/// The maximum time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace in addition to the two of a wire, with memcached in it.
struct Pod {
    netns: String,
    server: Option<Subject>,
    wire: Wire,
    address: SocketAddr,
}

impl Pod {
    /// Creates the namespace, without any network path to it.
    fn beside(wire: Wire, address: &str) -> Result<Self, Failed> {
        let netns = format!("{}-pod", wire.near);
        run(&format!("ip netns add {netns}"))?;
        run(&format!("ip -n {netns} link set lo up"))?;
        let address = format!("{address}:11211").parse()?;
        Ok(Self { netns, server: None, wire, address })
    }

    /// Adds a veth from the namespace to the host, where its end is `lxc0`, and a route on the host.
    fn routed(&self) -> Result<(), Failed> {
        let (near, far, pod) = (&self.wire.near, &self.wire.far, &self.netns);
        run(&format!("ip -n {near} link add lxc0 type veth peer name eth0 netns {pod}"))?;
        run(&format!("ip -n {near} addr add 198.51.100.1/24 dev lxc0"))?;
        run(&format!("ip -n {near} link set lxc0 up"))?;
        run(&format!("ip -n {pod} addr add 198.51.100.2/24 dev eth0"))?;
        run(&format!("ip -n {pod} link set eth0 up"))?;
        run(&format!("ip -n {pod} route add default via 198.51.100.1"))?;
        run(&format!("ip -n {far} route add 198.51.100.0/24 via 192.0.2.1"))?;
        run(&format!("ip netns exec {near} sysctl -qw net.ipv4.ip_forward=1"))?;
        Ok(())
    }

    /// Makes the wire's near end redirect received packets to the pod with `bpf_redirect_peer()`.
    fn redirected(&self, scratch: &Scratch) -> Result<(), Failed> {
        self.routed()?;
        let near = &self.wire.near;
        let index = run(&format!("ip netns exec {near} cat /sys/class/net/lxc0/ifindex"))?;
        let program = scratch.path("redirect_peer.o");
        let source = format!("{}/tests/root/programs/redirect_peer.bpf.c", env!("CARGO_MANIFEST_DIR"));
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
        let compiled = Command::new(clang)
            .args(["-O2", "-target", "bpf", &format!("-DIFINDEX={}", index.trim()), "-c", &source, "-o"])
            .arg(&program)
            .status()?;
        assert!(compiled.success(), "{source} compiles");
        // The far end sends to the near end's Ethernet address, so the pod must have the same address.
        let mac = run(&format!("ip netns exec {near} cat /sys/class/net/near0/address"))?;
        run(&format!("ip -n {} link set eth0 address {}", self.netns, mac.trim()))?;
        run(&format!("tc -n {near} qdisc add dev near0 clsact"))?;
        let filter = "filter add dev near0 ingress protocol ip bpf da obj";
        run(&format!("tc -n {near} {filter} {} sec tc", program.display()))?;
        Ok(())
    }

    /// Starts memcached, and returns a connection on which it has answered.
    fn serve(&mut self) -> Result<TcpStream, Failed> {
        let memcached = format!("memcached -u root -t 1 -U 0 -l {} -p 11211", self.address.ip());
        let line = format!("netns exec {} {memcached}", self.netns);
        self.server = Some(Subject::start(Command::new("ip").args(line.split(' ')))?);
        let far = Netns::named(&self.wire.far)?;
        let address = self.address;
        let connect = || far.run(|| TcpStream::connect_timeout(&address, PATIENCE)).ok()?.ok();
        let mut client = eventually("memcached listens", connect)?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_nodelay(true)?;
        ask(&mut client, 10)?;
        Ok(client)
    }

    /// Observes the server from the host's namespace.
    fn observed(&self) -> Result<Process, Failed> {
        let pid = self.server.as_ref().ok_or("no server")?.pid();
        let mut unread = Vec::new();
        let found = processes(&self.wire.near()?, &Processes::Only(vec![pid]), &mut unread);
        found.into_iter().next().ok_or_else(|| format!("not observed: {unread:?}").into())
    }

    /// Returns the NAPIs of the host's device, which is in the host's namespace.
    fn host_napis(&self) -> Result<Vec<NapiId>, Failed> {
        Ok(self.wire.near0()?.napis.iter().map(|napi| napi.id).collect())
    }

    /// Returns the number of packets that busy polling received from devices of a namespace. Kernel:
    /// `LINUX_MIB_BUSYPOLLRXPACKETS`.
    fn polled(&self) -> Result<u64, Failed> {
        let text = self.wire.in_near("cat /proc/net/netstat")?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
        let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
            return Err("no TcpExt".into());
        };
        let mut both = names.split(' ').zip(values.split(' '));
        let found = both.find(|(name, _)| *name == "BusyPollRxPackets").ok_or("no BusyPollRxPackets")?;
        Ok(found.1.parse()?)
    }

    /// Returns the NAPI that the pod's server reports, and the number of the host device's packets that the
    /// server polled once its epolls were set to busy-poll.
    fn outcome(&mut self) -> Result<(Option<NapiId>, u64), Failed> {
        let mut client = self.serve()?;
        let server = self.observed()?;
        assert_ne!(server.netns, Some(self.wire.near()?.id()), "the socket is in another namespace");
        let named = server.sockets.iter().filter(|socket| socket.remote.is_some()).find_map(|s| s.napi);
        for napi in self.host_napis()? {
            let change = NapiChange {
                defer_hard_irqs: Some(EmptyPolls(100)),
                gro_flush_timeout: Some(Nanoseconds::from_millis(2)),
                irq_suspend_timeout: Some(Nanoseconds::from_millis(20)),
                threaded: None,
            };
            let set =
                self.wire.near()?.run(|| Netdev::open_here().map(|mut n| n.set_napi(napi, &change)))??;
            set.map_err(|refused| format!("napi-set: {refused:?}"))?;
        }
        let busy = EpollParams {
            busy_poll_usecs: u32::try_from(POLLS_FOR.as_micros())?,
            busy_poll_budget: 64,
            prefer_busy_poll: true,
            events_only: false,
        };
        for epoll in &server.epolls {
            process::write_epoll(&epoll.id, busy)?;
        }
        let before = self.polled()?;
        ask(&mut client, REQUESTS)?;
        Ok((named, self.polled()? - before))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.server.take());
        let _gone_already = run(&format!("ip netns del {}", self.netns));
    }
}

/// Sends this many requests, each one after the answer to the previous one.
fn ask(client: &mut TcpStream, requests: usize) -> Result<(), Failed> {
    let mut answer = [0; 64];
    for _ in 0..requests {
        client.write_all(b"get k\r\n")?;
        let length = client.read(&mut answer)?;
        assert_eq!(&answer[..length], b"END\r\n");
    }
    Ok(())
}

fn keeps(mut pod: Pod) -> Result<(), Failed> {
    let napis = pod.host_napis()?;
    let (named, polled) = pod.outcome()?;
    assert!(named.is_some_and(|napi| napis.contains(&napi)), "{named:?} of {napis:?}");
    assert!(polled >= POLLED_MIN, "{polled} packets of {REQUESTS} requests were polled by the pod");
    Ok(())
}

fn routed() -> Result<(), Failed> {
    let mut pod = Pod::beside(Wire::new(1)?, "198.51.100.2")?;
    pod.routed()?;
    let (named, polled) = pod.outcome()?;
    assert_eq!((named, polled), (None, 0), "the NAPI of the host's device is lost on the way");
    Ok(())
}

fn redirected() -> Result<(), Failed> {
    let scratch = Scratch::new("redirect-peer")?;
    let pod = Pod::beside(Wire::new(1)?, "198.51.100.2")?;
    pod.redirected(&scratch)?;
    keeps(pod)
}

fn of_nic() -> Result<(), Failed> {
    let scratch = Scratch::new("redirect-peer-nic")?;
    let pod = Pod::beside(Wire::between("virtio")?, "198.51.100.2")?;
    pod.redirected(&scratch)?;
    keeps(pod)
}

fn macvlan() -> Result<(), Failed> {
    let pod = Pod::beside(Wire::new(1)?, "192.0.2.9")?;
    let (near, netns) = (&pod.wire.near, &pod.netns);
    run(&format!("ip -n {near} link add link near0 name mv0 netns {netns} type macvlan mode bridge"))?;
    run(&format!("ip -n {netns} addr add 192.0.2.9/24 dev mv0"))?;
    run(&format!("ip -n {netns} link set mv0 up"))?;
    keeps(pod)
}
