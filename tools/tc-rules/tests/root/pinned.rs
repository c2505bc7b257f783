//! Rules whose match is a pinned BPF program.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use tc_rules::kernel::Devices;
use tc_rules::{Batch, Lookup};
use testkit::{Need, test};

use crate::rules::{HOOK, Stage, messages, text};

/// A program that matches every packet, without any header.
const PROGRAM: &str = "__attribute__((section(\"tc\"), used)) int every_packet(void *packet) { return -1; }\n\
                       char words[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";

/// `TCA_OPTIONS` and `TCA_BPF_FD`.
const OPTIONS: u16 = 2;
const FD: u16 = 6;

/// Bytes before a message's attributes: `nlmsghdr` and `tcmsg`.
const HEADER_BYTES: usize = 36;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_pinned_program_is_loaded_compared_and_taken_away", &[Need::Root], loaded),
        test("tc_sends_the_same_bytes_for_a_pinned_program", &[Need::Root, Need::Strace], as_tc_sends_it),
    ]
}

/// A private BPF file system with a pinned program.
struct Pinned(PathBuf);

impl Pinned {
    fn at(stage: &Stage) -> Self {
        let (source, object) = (stage.scratch.path("program.c"), stage.scratch.path("program.o"));
        std::fs::write(&source, PROGRAM).expect("a file");
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
        run(Command::new(clang)
            .args(["-O2", "-g", "-target", "bpf", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(&object));
        let folder = stage.scratch.path("bpf");
        std::fs::create_dir_all(&folder).expect("a directory");
        run(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&folder));
        let pinned = Self(folder);
        let open = libbpf_rs::ObjectBuilder::default().open_file(&object).expect("opened");
        let object = open.load().expect("loaded");
        let mut program =
            object.progs_mut().find(|program| program.name() == "every_packet").expect("the program");
        program.pin(pinned.path()).expect("pinned");
        pinned
    }

    fn path(&self) -> PathBuf {
        self.0.join("every_packet")
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn rule(program: &Path) -> String {
    format!(
        "filter add dev d0 ingress protocol ip prio 1 handle 1 bpf object-pinned {} action mirred egress redirect dev d1\n\
         filter add dev d0 ingress protocol ip prio 2 handle 1 bpf da pinned {0}\n",
        program.display()
    )
}

fn loaded() -> Result<(), Failed> {
    let stage = Stage::new("pinned");
    let pinned = Pinned::at(&stage);
    let file = stage.file(&format!("{HOOK}{}", rule(&pinned.path())));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!((code, &report["loaded"]), (0, &3.into()), "{report}");
    let listed = stage.run("tc", &["filter", "show", "dev", "d0", "ingress"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("every_packet:[") && listed.contains("direct-action"), "{listed}");
    assert!(listed.contains("Redirect to device d1"), "{listed}");
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"]), (0, &2.into()), "{report}");
    let gone = stage.file(&format!(
        "filter del dev d0 ingress protocol ip prio 1 handle 1 bpf\n{}",
        "filter del dev d0 ingress prio 2\n"
    ));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&gone)]).0, 0);
    assert_eq!(stage.rules(), 0);
    let wrong = stage.file(&rule(Path::new("/sys/fs/bpf/there/is/none")));
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "load", text(&wrong)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no BPF program is pinned at `/sys/fs/bpf/there/is/none`"), "{said}");
    Ok(())
}

fn as_tc_sends_it() -> Result<(), Failed> {
    let stage = Stage::new("pinned_bytes");
    let pinned = Pinned::at(&stage);
    let mut devices = Devices::of(&stage.netns);
    let trace = stage.scratch.path("trace");
    for line in rule(&pinned.path()).lines() {
        let file = stage.file(&format!("{line}\n"));
        stage.run(
            "strace",
            &["-e", "trace=sendmsg", "-e", "write=all", "-o", text(&trace), "tc", "-b", text(&file)],
        );
        let traced = std::fs::read_to_string(&trace).expect("a trace");
        let sent = messages(&traced).into_iter().rfind(|message| message[4..6] != 18_u16.to_ne_bytes());
        let mut sent = sent.unwrap_or_else(|| panic!("tc sent nothing for: {line}"));
        sent[8..12].fill(0);
        let mut out = netlink::attr::AttrBuf::new();
        let mut batch = Batch::new(line.as_bytes());
        let lookup: &mut dyn Lookup = &mut devices;
        batch.next_command(lookup).expect("read").expect("a command").1.encode(0, 4, &mut out);
        let mut ours = out.into_bytes();
        // The descriptor's number differs between processes.
        for message in [&mut sent, &mut ours] {
            let at = descriptor(message).expect("a descriptor");
            message[at..at + 4].fill(0);
        }
        assert!(ours == sent, "{line}\n{ours:02x?}\n{sent:02x?}");
    }
    Ok(())
}

/// The offset of the descriptor's number in a message.
fn descriptor(message: &[u8]) -> Option<usize> {
    let header = |at: usize| {
        let field = |at: usize| message.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
        Some((usize::from(field(at)?), field(at + 2)?))
    };
    let (mut at, mut wanted) = (HEADER_BYTES, OPTIONS);
    loop {
        let (length, number) = header(at)?;
        match (number & 0x3fff == wanted, wanted) {
            (true, FD) => return Some(at + 4),
            (true, _) => (at, wanted) = (at + 4, FD),
            (false, _) => at += length.next_multiple_of(4).max(4),
        }
    }
}
