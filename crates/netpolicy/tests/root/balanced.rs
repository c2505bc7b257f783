//! Tests netpolicy together with irqbalance, in a guest whose NICs have movable interrupts.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::irqbalance::Irqbalance;
use linux::{Netns, Processes, observe};
use model::IrqNumber;
use testkit::balancer::Balancer;
use testkit::scratch::Scratch;
use testkit::{Need, test};

/// The interrupt that the operator has banned from irqbalance. Every PC has this interrupt.
const FOREIGN: IrqNumber = IrqNumber(1);

/// How many transactions to roll back after a failed test: the two that the test made, and those whose bans
/// irqbalance was at first too busy to accept.
const ROLLED_BACK_MAX: usize = 4;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Irqbalance, Need::VirtioNics];
    vec![
        test("balanced/what_is_placed_is_banned_and_a_rollback_gives_it_back", NEEDS, banned_and_back),
        test("balanced/the_undo_script_gives_it_back_too", NEEDS, undo_script),
    ]
}

/// An operator in the guest's own namespace, with a policy that places the interrupts of `virtio0`.
struct Scene {
    scratch: Scratch,
    placed: BTreeSet<IrqNumber>,
    balancer: Balancer,
}

impl Scene {
    fn new(name: &str, delivery: &str) -> Result<Self, Failed> {
        let scratch = Scratch::new(&format!("balanced-{name}"))?;
        std::fs::create_dir(scratch.path("policy.d"))?;
        let policy = format!("[device.virtio0]\ndelivery = \"{delivery}\"\ncpus = \"1\"\n");
        std::fs::write(scratch.path("policy.d/10-test.toml"), policy)?;
        Command::new("ip").args(["link", "set", "virtio0", "up"]).status()?;
        let host = observe(&Netns::own()?, &Processes::None)?;
        let virtio = host.device_named("virtio0").ok_or("no virtio0")?;
        let placed: BTreeSet<_> = virtio.napis.iter().filter_map(|napi| Some(napi.irq?.irq)).collect();
        assert_eq!(placed.len(), 2, "{virtio:?}");
        Ok(Self { scratch, placed, balancer: Balancer::of_this_host("--banirq=1")? })
    }

    fn runs(&self, arguments: &[&str], code: i32) -> Result<String, Failed> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
        command.arg("--state-dir").arg(self.scratch.path("state"));
        let output =
            command.arg("--policy-dir").arg(self.scratch.path("policy.d")).args(arguments).output()?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.code() == Some(code) {
            Ok(said)
        } else {
            Err(format!("{}: {said}", output.status).into())
        }
    }

    /// Applies the policy with its bans. Retries, because irqbalance does not answer while it scans the
    /// machine.
    fn applies_with_bans(&self) -> Result<(), Failed> {
        const ATTEMPTS: usize = 5;
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            said = self.runs(&["apply"], 0)?;
            if self.banned()? == self.with_placed() {
                return Ok(());
            }
        }
        Err(format!("nothing was banned: {said}").into())
    }

    fn banned(&self) -> Result<BTreeSet<IrqNumber>, Failed> {
        Ok(Irqbalance::new().running()?.ok_or("no irqbalance")?.bans().clone())
    }

    fn with_placed(&self) -> BTreeSet<IrqNumber> {
        self.placed.iter().copied().chain([FOREIGN]).collect()
    }

    fn affinities(&self) -> Result<Vec<String>, Failed> {
        let of = |irq: &IrqNumber| std::fs::read_to_string(format!("/proc/irq/{irq}/smp_affinity_list"));
        Ok(self
            .placed
            .iter()
            .map(|irq| of(irq).map(|text| text.trim().to_owned()))
            .collect::<Result<_, _>>()?)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Roll back each transaction: the next test would mistake leftovers of a failed test for the NIC's
        // own values.
        for _ in 0..ROLLED_BACK_MAX {
            let _ = self.runs(&["rollback"], 0);
        }
    }
}

fn banned_and_back() -> Result<(), Failed> {
    let mut scene = Scene::new("rollback", "defer50")?;
    let foreign = BTreeSet::from([FOREIGN]);
    assert_eq!(scene.banned()?, foreign);
    let said = scene.runs(&["plan"], 3)?;
    assert!(said.contains("irqbalance-ban") && said.contains("would move it"), "{said}");
    scene.applies_with_bans()?;
    assert_eq!(scene.affinities()?, ["1", "1"]);
    scene.runs(&["verify"], 0)?;
    let again = scene.runs(&["apply"], 0)?;
    assert!(again.contains("Nothing to change"), "{again}");
    scene.runs(&["rollback"], 0)?;
    assert_eq!(scene.banned()?, foreign);

    // Bans end with the irqbalance process: the new process has none, which is drift.
    scene.applies_with_bans()?;
    scene.balancer.kill();
    scene.balancer = Balancer::of_this_host("--banirq=1")?;
    let drift = scene.runs(&["verify"], 3)?;
    assert!(drift.contains("irqbalance-ban"), "{drift}");
    scene.applies_with_bans()?;
    // A rollback of already restored settings succeeds.
    scene.runs(&["rollback"], 0)?;
    scene.runs(&["rollback"], 0)?;
    assert_eq!(scene.banned()?, foreign);
    Ok(())
}

fn undo_script() -> Result<(), Failed> {
    // The mode is `interrupt` because undo.sh needs a tool for NAPI settings that the guest may lack.
    let scene = Scene::new("script", "interrupt")?;
    scene.applies_with_bans()?;
    let script = std::fs::read_dir(scene.scratch.path("state/journal"))?
        .flatten()
        .map(|entry| entry.path().join("undo.sh"))
        .filter(|path| path.is_file())
        .max()
        .ok_or("no script")?;
    let run = |script: &Path| Command::new("sh").arg(script).arg("--by-hand").output();
    for round in ["restored to off", "is off already"] {
        let output = run(&script)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(round), "{said}{errors}");
        assert_eq!(scene.banned()?, BTreeSet::from([FOREIGN]));
    }
    Ok(())
}
