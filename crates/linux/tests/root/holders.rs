//! Tests that a queue that a process holds exclusively is observed with that process, and is not removed.

use std::process::Command;

use apply::{Allow, CommitFault, Journal, Knobs, Moment, TransactionOrigin, UndoState};
use libtest_mimic::{Failed, Trial};
use linux::Kernel;
use linux::process::identify;
use model::host::{Confidence, Device, HolderKind, HolderProcess, QueueHolder};
use model::{Change, ChannelKind, Nanoseconds, NicKnob, Plan, QueueIndex, Reason, Setting, Step};
use netlink::xdp_diag::XdpSockets;
use testkit::scratch::Scratch;
use testkit::subject::Subject;
use testkit::wire::Wire;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Cc, Need::Wire, Need::AfXdp];
    vec![
        test("holders/an_af_xdp_socket_is_seen_on_its_queue_with_its_process", NEEDS, seen),
        test("holders/fewer_channels_are_refused_while_a_socket_holds_one", NEEDS, refused),
    ]
}

/// Starts the program that binds a socket to queue 1 of `near0`.
fn socket_on(wire: &Wire, scratch: &Scratch) -> Result<Subject, Failed> {
    let program = scratch.compile("af_xdp", &[])?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.near]).arg(program).args(["near0", "1"]);
    Ok(Subject::ready(&mut command)?.0)
}

/// Returns the expected holder. A kernel without sock-diag of AF_XDP neither names the socket nor reports
/// that the socket copies packets.
fn held_by(socket: &Subject, wire: &Wire) -> Result<QueueHolder, Failed> {
    // `ip netns exec` replaces itself with the program, so the pid is the program's.
    let id = identify(socket.pid())?;
    let diag =
        !wire.near()?.run(|| XdpSockets::open_here().and_then(|mut sockets| sockets.bound()))??.is_empty();
    Ok(QueueHolder {
        queue: QueueIndex(1),
        rx: true,
        tx: true,
        kind: HolderKind::AfXdp { zero_copy: diag.then_some(false) },
        processes: vec![HolderProcess {
            id,
            confidence: if diag { Confidence::Stated } else { Confidence::ByOrder },
        }],
    })
}

fn seen() -> Result<(), Failed> {
    let (wire, scratch) = (Wire::new(2)?, Scratch::new("af-xdp-seen")?);
    assert_eq!(wire.near0()?.holders, [], "no socket holds the queue yet");
    let mut socket = socket_on(&wire, &scratch)?;
    assert_eq!(wire.near0()?.holders, [held_by(&socket, &wire)?]);
    socket.kill();
    assert_eq!(after_release(&wire)?.holders, [], "the holder ended with its process");
    Ok(())
}

/// Observes the near end after the kernel has freed the socket's pool, which a kernel worker does later
/// (`xp_release_deferred()`).
fn after_release(wire: &Wire) -> Result<Device, Failed> {
    const LOOKS_MAX: usize = 100;
    for _ in 0..LOOKS_MAX {
        let near0 = wire.near0()?;
        if near0.holders.is_empty() {
            return Ok(near0);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    wire.near0()
}

fn channels_of(device: &Device) -> Change {
    let of = |count| Setting::Nic(device.id, NicKnob::Channels(ChannelKind::Rx, count));
    Change::new(of(2), of(1), Reason::new("fewer queues", "a test"))
}

fn commit(
    change: &Change,
    scratch: &Scratch,
    kernel: &mut Counting,
) -> Result<(), CommitFault<linux::KernelError>> {
    let asked = TransactionOrigin {
        at: Moment { unix_micros: 1, since_boot: Nanoseconds(1) },
        command: "a test".to_owned(),
        kernel_release: String::new(),
        netpolicy: String::new(),
        deadline: None,
    };
    let plan = Plan { steps: vec![Step::new(vec![change.clone()])] };
    let journal = Journal::new(scratch.path("journal"), "this-boot");
    let allow = Allow { irreversible: true, disruptive: true };
    match apply::commit(plan, kernel, &journal, &asked, allow) {
        Ok(held) => drop(held), // Dropping it rolls back the transaction.
        Err(error) => {
            assert_eq!(error.host, UndoState::Unchanged);
            return Err(*error.fault);
        }
    }
    Ok(())
}

/// A wrapper of the running kernel that counts writes.
#[derive(Debug, Default)]
struct Counting {
    kernel: Kernel,
    writes: usize,
}

impl Knobs for Counting {
    type Error = linux::KernelError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Self::Error> {
        self.kernel.read(like)
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), Self::Error> {
        self.writes += 1;
        self.kernel.write(settings)
    }

    fn queue_conflict(
        &mut self,
        changes: &[&Change],
    ) -> Result<Option<model::host::QueueConflict>, Self::Error> {
        self.kernel.queue_conflict(changes)
    }

    fn is_gone(error: &Self::Error) -> bool {
        Kernel::is_gone(error)
    }
}

fn refused() -> Result<(), Failed> {
    let (wire, scratch) = (Wire::new(2)?, Scratch::new("af-xdp-refused")?);
    let change = channels_of(&wire.near0()?);
    let mut socket = socket_on(&wire, &scratch)?;
    let mut kernel = Counting::default();
    let Err(CommitFault::QueueConflict(taken)) = commit(&change, &scratch, &mut kernel) else {
        return Err("the queue was taken from its holder".into());
    };
    let words = taken.to_string();
    assert!(words.contains(&identify(socket.pid())?.to_string()), "{words}");
    assert_eq!(kernel.writes, 0);
    assert_eq!(wire.near0()?.holders, [held_by(&socket, &wire)?], "the socket holds its queue as before");
    socket.kill();
    after_release(&wire)?;
    commit(&change, &scratch, &mut kernel).map_err(|fault| fault.to_string())?;
    assert_eq!(kernel.writes, 2, "written and rolled back, once nothing held the queue");
    Ok(())
}
