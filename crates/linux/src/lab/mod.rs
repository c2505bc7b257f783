//! The lab: two hosts on one machine, created and removed by netpolicy.
//!
//! ```text
//!  client                                    server
//!  192.0.2.2                                 192.0.2.1            two network namespaces without names
//!  ┌─────────────┐   queue n → queue n      ┌─────────────┐
//!  │ veth-client ├──────────────────────────┤ veth-server │       a veth pair with as many queues as asked for
//!  └─────────────┘                          └──────┬──────┘
//!   TSO off                                  GRO on: a NAPI per queue
//!                                              memcached          as the distribution has it
//! ```
//!
//! TCP reaches the server's NAPIs only with TSO off and GRO on as shown: a veth has NAPIs while GRO is on (or
//! an XDP program is attached), and uses them for a packet only if the *sending* device has no TSO. Otherwise
//! packets go through the per-CPU backlog, and no delivery mode makes any difference. (Kernel: 6.18,
//! `drivers/net/veth.c` `veth_skb_is_eligible_for_gro()`, `veth_xmit()`.)
//!
//! Nothing outlives the process that holds a lab, however that process ends. The namespaces have no names, so
//! only descriptors and processes keep them alive. The processes run in a pid namespace whose first process
//! exits when ours does; the kernel then kills the rest. (`PR_SET_PDEATHSIG` would not suffice: the kernel
//! clears it when memcached changes its user.)

mod hosts;
mod init;
mod memcached;
mod program;
mod scratch;
mod server_host;

pub use hosts::{CLIENT_ADDRESS, CLIENT_DEVICE, Lab, LabOptions, SERVER_ADDRESS, SERVER_DEVICE};
pub use memcached::{Memcached, MemcachedOptions, ServerError};
pub use program::{ProgramError, ServerProgram};
pub use server_host::ServerHost;
