//! Creates the two hosts of a lab and the link between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use model::{CpuSet, IfIndex, Pid};
use netlink::Links;
use netlink::offload::{self, Offload};
use netlink::rtlink::{RtLink, VethEnd};
use sys::error::{Cause, Errno, KernelError};
use sys::netns::Netns;
use sys::sysfs::SysFs;

use super::init::Init;
use super::memcached::{self, Memcached, MemcachedOptions, ServerError};
use super::program::{ProgramError, ServerProgram};
use super::scratch::Scratch;

/// The server's address. It belongs to the documentation range TEST-NET-1 (RFC 5737), which is not routed: no
/// packet leaves the lab.
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The address of memcached.
const MEMCACHED_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_ADDRESS), memcached::PORT);

/// The client's address.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// The prefix length of the server's and the client's address.
const PREFIX: u8 = 24;

/// The server's network device.
pub const SERVER_DEVICE: &str = "veth-server";

/// The client's network device.
pub const CLIENT_DEVICE: &str = "veth-client";

/// The loopback device has this index in every namespace. Kernel: `include/net/net_namespace.h` `LOOPBACK_IFINDEX`.
const LOOPBACK: IfIndex = IfIndex(1);

/// Options of a lab. All options except `queues` serve to show the effect of a wrong configuration.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// The number of queues of each end of the veth, 1..=[`LabOptions::QUEUES_MAX`].
    pub queues: u32,
    /// Whether the client's device has TCP segmentation offload; if so, packets bypass the server's NAPIs.
    pub client_tso: bool,
    /// Whether the server's device merges packets (GRO); without GRO, the device has no NAPIs.
    pub server_gro: bool,
    /// The CPUs to which the server's device hands received packets (RPS); empty for none.
    pub server_rps: CpuSet,
}

impl LabOptions {
    /// The maximum number of queues of a lab. A veth can have more.
    pub const QUEUES_MAX: u32 = 64;

    /// The standard lab.
    pub const fn with_queues(queues: u32) -> Self {
        Self { queues, client_tso: false, server_gro: true, server_rps: CpuSet::new() }
    }
}

/// Two hosts on one machine. Dropping the lab removes them.
#[derive(Debug)]
pub struct Lab {
    // Dropped first, so that the namespaces have no processes left when their descriptors are closed.
    init: Arc<Init>,
    server: Netns,
    client: Netns,
    scratch: Scratch,
    queues: u32,
}

impl Lab {
    /// Creates a lab.
    ///
    /// # Errors
    /// The kernel's error: EPERM without CAP_SYS_ADMIN and CAP_NET_ADMIN, EINVAL for an impossible number of
    /// queues, EOPNOTSUPP on a kernel without veth.
    pub fn new(options: &LabOptions) -> Result<Self, KernelError> {
        if !(1..=LabOptions::QUEUES_MAX).contains(&options.queues) {
            let what = format!("a lab with {} queues (1 to {})", options.queues, LabOptions::QUEUES_MAX);
            return Err(KernelError::errno(what, sys::error::Errno::INVAL));
        }
        let server = Netns::create()?;
        let client = Netns::create()?;
        let end = |name| VethEnd { name, queues: options.queues };
        server.run(|| {
            RtLink::open_here()?.create_veth(end(SERVER_DEVICE), end(CLIENT_DEVICE), client.as_fd())
        })??;
        client.run(|| {
            offload::switch(device(CLIENT_DEVICE)?, Offload::Tso, options.client_tso)?;
            bring_up(CLIENT_DEVICE, CLIENT_ADDRESS)
        })??;
        server.run(|| {
            offload::switch(device(SERVER_DEVICE)?, Offload::Gro, options.server_gro)?;
            bring_up(SERVER_DEVICE, SERVER_ADDRESS)
        })??;
        if !options.server_rps.is_empty() {
            steer(&server, options)?;
        }
        Ok(Self {
            init: Arc::new(Init::start(&server)?),
            server,
            client,
            scratch: Scratch::new()?,
            queues: options.queues,
        })
    }

    /// The server's network namespace.
    pub const fn server(&self) -> &Netns {
        &self.server
    }

    /// The client's network namespace.
    pub const fn client(&self) -> &Netns {
        &self.client
    }

    /// Returns a process that stays in the server's network namespace as long as the lab exists, for `--netns
    /// pid:N`.
    pub fn server_pid(&self) -> Pid {
        self.init.pid()
    }

    /// The number of queues of each end of the veth.
    pub const fn queues(&self) -> u32 {
        self.queues
    }

    /// Returns a path to the client's network namespace, for other processes and for `--netns`. The path is
    /// valid as long as this process holds the lab.
    pub fn client_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.client.as_fd().as_raw_fd()))
    }

    /// Returns a directory for files that disappear with the lab, such as the lab's journal. The path is
    /// valid as long as this process holds the lab, and only for processes that may trace this one.
    pub fn scratch(&self) -> PathBuf {
        self.scratch.path()
    }

    /// Makes the client's TCP connections use timestamps in microseconds. Returns false if the kernel does
    /// not support that (before Linux 6.7).
    ///
    /// # Errors
    /// The kernel's error; EEXIST if such a route exists already.
    pub fn stamp_in_microseconds(&self) -> Result<bool, KernelError> {
        let added = self.client.run(|| {
            let device = device(CLIENT_DEVICE)?;
            RtLink::open_here()?.add_route_with_microsecond_stamps(device, SERVER_ADDRESS)
        })?;
        match added {
            Err(KernelError {
                cause: Cause::Errno(Errno::INVAL) | Cause::Extack { errno: Errno::INVAL, .. },
                ..
            }) => Ok(false),
            added => added.map(|()| true),
        }
    }

    /// Makes a command run in the client's namespace, and makes it end when the thread that starts it ends.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn place_on_client(&self, command: &mut Command) -> Result<(), KernelError> {
        let netns = self.client.as_fd().try_clone_to_owned();
        let netns = netns.map_err(|error| KernelError::io("the client's namespace", &error))?;
        sys::child::bind(command, Some(netns));
        Ok(())
    }

    /// Starts memcached on the server, and waits until it answers the client.
    ///
    /// # Errors
    /// If memcached is not installed, exits immediately or does not answer in time; the error contains its
    /// standard error.
    pub fn start_memcached(&self, options: &MemcachedOptions) -> Result<Memcached, ServerError> {
        Memcached::start((&self.server, &self.client), &self.init, MEMCACHED_ADDRESS, options)
    }

    /// Starts a server that listens on a port of [`SERVER_ADDRESS`], and waits until it accepts connections
    /// from the client.
    ///
    /// # Errors
    /// If the server cannot be started, exits immediately or accepts no connection in time; the error
    /// contains its standard error.
    pub fn start_program(&self, command: Command, port: u16) -> Result<ServerProgram, ProgramError> {
        self.start_program_on(&CpuSet::new(), command, port)
    }

    /// Like [`Lab::start_program`], with a server that may run only on these CPUs; on all CPUs if the set is
    /// empty.
    ///
    /// # Errors
    /// Those of [`Lab::start_program`].
    pub fn start_program_on(
        &self,
        cpus: &CpuSet,
        command: Command,
        port: u16,
    ) -> Result<ServerProgram, ProgramError> {
        let address = SocketAddr::new(SERVER_ADDRESS.into(), port);
        ServerProgram::start_in_lab((&self.server, &self.client), &self.init, cpus, command, address)
    }
}

/// Returns the index of a device in the calling thread's namespace.
fn device(name: &str) -> Result<IfIndex, KernelError> {
    let devices =
        Links::open_here()?.all(|link| (link.name == name.as_bytes()).then_some(IfIndex(link.ifindex)))?;
    let found = devices.into_iter().flatten().next();
    found.ok_or_else(|| KernelError::gone(name, "the new device does not exist"))
}

fn bring_up(name: &str, address: Ipv4Addr) -> Result<(), KernelError> {
    let device = device(name)?;
    let mut rtlink = RtLink::open_here()?;
    rtlink.add_address(device, address, PREFIX)?;
    rtlink.set_up(LOOPBACK)?;
    rtlink.set_up(device)
}

/// Turns on receive packet steering on all queues of the server's device.
fn steer(server: &Netns, options: &LabOptions) -> Result<(), KernelError> {
    let ifindex = server.run(|| device(SERVER_DEVICE))??;
    let directory = SysFs::open(server)?.device(SERVER_DEVICE, ifindex)?;
    for queue in 0..options.queues {
        directory.write(&format!("queues/rx-{queue}/rps_cpus"), &options.server_rps.to_mask())?;
    }
    Ok(())
}
