//! The emulated guest: the distribution's kernel or a patched one, with interrupts, CPU hotplug, and NICs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::apt::{self, Apt};
use super::boot::{self, Guest, Order, Run};
use super::cache::{self, Cache};
use super::outcome::Kind;
use super::patched::Patched;
use crate::files;
use crate::setup;
use crate::shell::{self, Result};

/// The version of the oldest QEMU with an igb NIC. Older ones also mishandle code that the guest patches on
/// two CPUs at the same time.
const OLDEST_QEMU: &str = "1:8.0";

/// The emulated machine's memory, in MiB. It is small, because the host may be running several machines.
const MEBIBYTES: &str = "2048";

/// The disk space that a kernel's modules and the emulator need, in MiB.
const SPACE: u64 = 700;

/// How long a guest with hardware virtualization may take to show that it boots.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// The modules needed to mount the root. Modules that are built into the kernel have no file.
const EARLY_MODULES: &[&str] = &["netfs", "9pnet", "9pnet_virtio", "9p", "overlay"];

/// An emulated machine: its kernel, the emulator, and the accelerator.
pub(super) struct Qemu {
    kernel: Kernel,
    emulator: Emulator,
    accelerator: &'static str,
    /// Whether the machine also has an e1000e NIC, whose driver moderates its interrupts adaptively.
    pub(super) has_e1000e: bool,
}

/// The kernel to boot.
struct Kernel {
    /// The directory that has `vmlinuz` and, for the distribution's kernel, `lib/modules/RELEASE`.
    directory: PathBuf,
    initrd: PathBuf,
    release: String,
    /// Whether this is a patched kernel. It is also used for measurements, so the machine's CPUs are pinned
    /// to separate CPUs of the host.
    patched: bool,
}

/// QEMU: the system's, or one unpacked in the cache.
struct Emulator {
    /// The directory of an unpacked emulator; `None` for the system's.
    unpacked: Option<PathBuf>,
    version: String,
}

impl Qemu {
    /// Returns the machine with the distribution's kernel: the kernel used last, which needs no network, or
    /// the newest available one.
    pub(super) fn stock(cache: &Cache, anew: bool) -> Result<Self> {
        let made = || Some((Kernel::ready(cache)?, Emulator::ready(cache)?));
        let (kernel, emulator) = match made() {
            Some(made) if !anew => made,
            _ => {
                let architecture = shell::output(Command::new("dpkg").arg("--print-architecture"))?;
                if architecture.trim() != "amd64" {
                    let this = architecture.trim();
                    return Err(format!("the emulated guest is an amd64 machine; this one is {this}"));
                }
                let _lock = cache.lock("qemu")?;
                let apt = Apt::open(cache)?;
                (Kernel::fetch(cache, &apt)?, Emulator::fetch(cache, &apt)?)
            }
        };
        Ok(Self { kernel, emulator, accelerator: "tcg", has_e1000e: false }.with_accelerator(cache))
    }

    /// Returns the machine with a patched kernel: the last build with these patches, or a new one. The
    /// machine is always emulated, so that measurements do not depend on the host's virtualization.
    pub(super) fn patched(cache: &Cache, patches: &[PathBuf], anew: bool) -> Result<Self> {
        let made = || {
            let patched = Patched::ready(cache, patches)?;
            Some((patched, Emulator::ready(cache)?, first_root_ready(cache)?))
        };
        let (patched, emulator, initrd) = match made() {
            Some(made) if !anew => made,
            _ => {
                let patched = Patched::build(cache, patches)?;
                let _lock = cache.lock("qemu")?;
                let apt = Apt::open(cache)?;
                (patched, Emulator::fetch(cache, &apt)?, first_root(cache, &apt)?)
            }
        };
        let release = files::read(&patched.directory.join("release"))?.trim().to_owned();
        let kernel = Kernel { directory: patched.directory, initrd, release, patched: true };
        Ok(Self { kernel, emulator, accelerator: "tcg", has_e1000e: false })
    }

    /// Returns the path of the kernel selftests that were built with the kernel.
    pub(super) fn selftests(&self) -> Option<PathBuf> {
        self.kernel.patched.then(|| self.kernel.directory.join("selftests"))
    }

    /// Uses hardware virtualization if a guest has booted with it, because a device that can be opened may
    /// still not work. The result is saved for this host kernel, QEMU and guest kernel.
    fn with_accelerator(mut self, cache: &Cache) -> Self {
        if !Path::new("/dev/kvm").exists() {
            return self;
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let asked =
            apt::path_letters(&format!("{}-{}-{}", host.trim(), self.emulator.version, self.kernel.release));
        let answer = cache.at(&format!("kvm-{asked}"));
        if let Ok(known) = std::fs::read_to_string(&answer) {
            if known.trim() == "works" {
                self.accelerator = "kvm";
            }
            return self;
        }
        self.accelerator = "kvm";
        let order = Order {
            command: vec!["true".into()],
            environment: Vec::new(),
            directory: "/".into(),
            boot_limit: PROBE_LIMIT,
            limit: PROBE_LIMIT,
        };
        eprintln!("guest: trying /dev/kvm, for {} s at most", PROBE_LIMIT.as_secs());
        let tried = boot::execute(cache, &self, &order, &mut |_, _| ());
        let works = tried.is_ok_and(|ended| ended.code == 0);
        if !works {
            eprintln!("guest: /dev/kvm exists but boots no guest: emulating");
            self.accelerator = "tcg";
        }
        // Ignore errors: if the result cannot be saved, the next run tries again.
        let _ = std::fs::write(&answer, if works { "works\n" } else { "boots no guest\n" });
        self
    }
}

impl Guest for Qemu {
    fn described(&self) -> String {
        format!("Linux {} in QEMU {} ({})", self.kernel.release, self.emulator.version, self.accelerator)
    }

    fn modules(&self) -> Option<PathBuf> {
        (!self.kernel.patched).then(|| self.kernel.directory.join("lib/modules").join(&self.kernel.release))
    }

    fn settle(&self, process: u32) -> Result {
        if self.kernel.patched { pin_cpus(process) } else { Ok(()) }
    }

    fn command(&self, run: &Run) -> Result<Command> {
        run.write_script("machine", include_str!("machine.sh"))?;
        let mut command = Run::contained();
        command.arg("sh").arg(run.directory().join("machine")).arg(self.emulator.program());
        command.env("E1000E", if self.has_e1000e { "1" } else { "" });
        if let Some(unpacked) = &self.emulator.unpacked {
            let libraries =
                ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|below| unpacked.join(below));
            let libraries = libraries.map(|path| path.to_string_lossy().into_owned()).join(":");
            command.env("LD_LIBRARY_PATH", libraries);
            for data in ["usr/share/qemu", "usr/share/seabios", "/usr/share/seabios"] {
                command.arg("-L").arg(unpacked.join(data));
            }
        }
        let (accelerator, cpu) = match self.accelerator {
            "kvm" => ("kvm", "host"),
            _ => ("tcg,thread=multi", "max,la57=off"),
        };
        command.args(["-name", "guest,debug-threads=on", "-nodefaults", "-no-reboot", "-M", "q35"]);
        command.args(["-accel", accelerator, "-cpu", cpu, "-smp", "2", "-m", MEBIBYTES]);
        command.args(["-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(self.kernel.directory.join("vmlinuz"));
        command.arg("-initrd").arg(&self.kernel.initrd);
        // no_timer_check: on a busy host, the emulated timer may be late, which the kernel would mistake for
        // a broken one.
        command
            .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 no_timer_check"]);
        // multidevs=remap: without it, the inode numbers of /proc and other mounts change.
        command
            .args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]);
        let shared = run.directory().display();
        command.arg("-virtfs").arg(format!("local,path={shared},mount_tag=run,security_model=none"));
        Ok(command)
    }
}

impl Kernel {
    fn ready(cache: &Cache) -> Option<Self> {
        Self::in_directory(cache.latest("kernel-latest")?)
    }

    fn in_directory(directory: PathBuf) -> Option<Self> {
        let release = std::fs::read_to_string(directory.join("release")).ok()?.trim().to_owned();
        let initrd = directory.join("initrd");
        let whole = directory.join("lib/modules").join(&release).is_dir();
        whole.then_some(Self { directory, initrd, release, patched: false })
    }

    fn fetch(cache: &Cache, apt: &Apt) -> Result<Self> {
        let mut offers = apt.offers("linux-binary-")?;
        offers.retain(|offer| release_of(&offer.package).is_some());
        let newest = apt::newest_kernel(offers).ok_or_else(|| {
            format!("no kernel package (linux-binary) of 6.18 or newer is available in {}", apt.suites())
        })?;
        let release = release_of(&newest.package).unwrap_or_default();
        // The name of the cached kernel includes a digest of the initrd's script.
        let key = cache::digest(&[include_str!("qemu-init.sh")])?;
        let name = format!("kernel/{}-{key}", apt::path_letters(&newest.version));
        if cache.finished(&name).and_then(Self::in_directory).is_none() {
            cache.need_space(SPACE, "a kernel with its modules")?;
            setup::need(setup::GUESTS)?;
            eprintln!("guest: fetching {} {}", newest.package, newest.version);
            let making = cache.begin("kernel")?;
            let packages = making.join("packages");
            files::make_directory(&packages)?;
            let modules = format!("linux-modules-{release}");
            apt.download(&[(&newest.package, &newest.version), (&modules, &newest.version)], &packages)?;
            apt::unpack_all(&packages, &making)?;
            assemble(&making, &release, apt)?;
            for done in ["packages", "busybox", "usr", "initrd.d"] {
                files::remove(&making.join(done))?;
            }
            files::write(&making.join("release"), &release)?;
            cache.finish(&making, &name, &["vmlinuz", "initrd", "release"])?;
        }
        let directory = cache.note("kernel-latest", &name)?;
        Self::in_directory(directory).ok_or_else(|| format!("{name} was built, but has no modules"))
    }
}

/// Returns the release in the name of a plain kernel package; `None` for real-time, cloud and unsigned ones.
fn release_of(package: &str) -> Option<String> {
    let release = package.strip_prefix("linux-binary-")?;
    let version = release.strip_suffix("-amd64")?;
    (version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains('-')).then(|| release.to_owned())
}

/// Assembles the boot files from unpacked packages: kernel, modules with their index, and an initial root.
fn assemble(making: &Path, release: &str, apt: &Apt) -> Result {
    let modules = making.join("lib/modules").join(release);
    files::rename(&making.join("usr/lib/modules").join(release), &modules)?;
    files::rename(&modules.join("vmlinuz"), &making.join("vmlinuz"))?;
    shell::run(Command::new("depmod").arg("-b").arg(making).arg(release))?;

    let root = lay_out(making, apt)?;
    let index = files::read(&modules.join("modules.dep"))?;
    for early in EARLY_MODULES {
        let file =
            index.lines().filter_map(|line| line.split(':').next()).find(|path| module_name(path) == *early);
        let Some(file) = file else { continue };
        let packed = modules.join(file);
        let plain = root.join("modules").join(format!("{early}.ko"));
        let unpack = if file.ends_with(".xz") { "xz -dc" } else { "cat" };
        let script = format!("{unpack} -- \"$1\" > \"$2\"");
        shell::run(Command::new("sh").args(["-c", &script, "sh"]).arg(packed).arg(plain))?;
    }
    pack(&root, &making.join("initrd"))
}

/// Lays out the files of the initial root in `initrd.d`; the packages that it needs are in `busybox`.
fn lay_out(making: &Path, apt: &Apt) -> Result<PathBuf> {
    let root = making.join("initrd.d");
    for below in ["bin", "modules", "proc"] {
        files::make_directory(&root.join(below))?;
    }
    let (offer, package) = (apt.own_newest("busybox-static")?, making.join("busybox"));
    files::make_directory(&package)?;
    apt.download(&[(&offer.package, &offer.version)], &package)?;
    apt::unpack_all(&package, &package)?;
    let places = ["usr/bin/busybox", "bin/busybox"].map(|below| package.join(below));
    let busybox = places.iter().find(|path| path.is_file());
    let busybox = busybox.ok_or("package busybox-static contains no busybox")?;
    files::put(busybox, &root.join("bin/busybox"), 0o755)?;
    files::write_script(&root.join("init"), include_str!("qemu-init.sh"))?;
    Ok(root)
}

fn pack(root: &Path, initrd: &Path) -> Result {
    let pack = "cd \"$1\" && find . | cpio --quiet -o -H newc > \"$2\"";
    shell::run(Command::new("sh").args(["-c", pack, "sh"]).arg(root).arg(initrd))
}

/// The path of the initial root of a kernel without modules.
fn first_root_name() -> Result<String> {
    Ok(format!("first-root/{}", cache::digest(&[include_str!("qemu-init.sh")])?))
}

fn first_root_ready(cache: &Cache) -> Option<PathBuf> {
    Some(cache.finished(&first_root_name().ok()?)?.join("initrd"))
}

/// Creates the initial root of a kernel without modules, unless it exists.
fn first_root(cache: &Cache, apt: &Apt) -> Result<PathBuf> {
    if let Some(initrd) = first_root_ready(cache) {
        return Ok(initrd);
    }
    setup::need(setup::GUESTS)?;
    let making = cache.begin("first-root")?;
    let root = lay_out(&making, apt)?;
    pack(&root, &making.join("initrd"))?;
    for done in ["busybox", "initrd.d"] {
        files::remove(&making.join(done))?;
    }
    Ok(cache.finish(&making, &first_root_name()?, &["initrd"])?.join("initrd"))
}

/// Pins each CPU of the machine to a CPU of the host. Otherwise, the host may run two half-idle CPUs of the
/// guest on one of its CPUs.
fn pin_cpus(process: u32) -> Result {
    let children = files::read(Path::new(&format!("/proc/{process}/task/{process}/children")))?;
    let status = files::read(Path::new("/proc/self/status"))?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    let cpus = read_cpu_list(allowed.trim());
    for child in children.split_whitespace() {
        let threads = format!("/proc/{child}/task");
        for thread in std::fs::read_dir(&threads).map_err(|error| format!("{threads}: {error}"))?.flatten() {
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            let Some(cpu) = emulated_cpu(name.trim()) else { continue };
            let Some(own) = cpus.get(cpu) else { continue };
            let thread = thread.file_name();
            shell::output(Command::new("taskset").args(["-p", "-c", &own.to_string()]).arg(thread))?;
        }
    }
    Ok(())
}

/// Returns the machine's CPU that a QEMU thread emulates: 1 for the thread `CPU 1/TCG`.
fn emulated_cpu(comm: &str) -> Option<usize> {
    comm.strip_prefix("CPU ")?.split('/').next()?.parse().ok()
}

/// Parses a list of CPUs in the kernel's format: `0-2,5`.
fn read_cpu_list(list: &str) -> Vec<usize> {
    let span = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(span).flatten().collect()
}

/// Returns the name of the module in a file: `9p` for `kernel/fs/9p/9p.ko.xz`.
fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

impl Emulator {
    fn ready(cache: &Cache) -> Option<Self> {
        Self::of_the_system().or_else(|| Self::in_directory(cache.latest("qemu-latest")?))
    }

    /// Returns the installed QEMU, if it is new enough.
    fn of_the_system() -> Option<Self> {
        if !shell::has("qemu-system-x86_64") {
            return None;
        }
        let version =
            shell::output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", "qemu-system-x86"]))
                .ok()?;
        apt::newer(&version, OLDEST_QEMU).then_some(Self { unpacked: None, version })
    }

    fn in_directory(unpacked: PathBuf) -> Option<Self> {
        let version = std::fs::read_to_string(unpacked.join("version")).ok()?;
        Some(Self { unpacked: Some(unpacked), version })
    }

    /// Returns the installed QEMU or, if it is missing or too old, the newest available one, unpacked.
    fn fetch(cache: &Cache, apt: &Apt) -> Result<Self> {
        if let Some(own) = Self::of_the_system() {
            return Ok(own);
        }
        // Take QEMU only from this release's own suites: packages of later releases would need their C
        // library.
        let newest = apt.own_newest("qemu-system-x86")?;
        if !apt::newer(&newest.version, OLDEST_QEMU) {
            let own = apt.own_suites().join(", ");
            return Err(format!("a guest needs QEMU 8.0 or newer; {own} offer {}", newest.version));
        }
        let name = format!("qemu/{}", apt::path_letters(&newest.version));
        if cache.finished(&name).is_none() {
            cache.need_space(SPACE, "an emulator")?;
            eprintln!("guest: fetching qemu-system-x86 {}", newest.version);
            let making = cache.begin("qemu")?;
            let packages = making.join("packages");
            apt.download_with_dependencies("qemu-system-x86", &newest.suite, &packages)?;
            apt::unpack_all(&packages, &making)?;
            files::remove(&packages)?;
            files::write(&making.join("version"), &newest.version)?;
            cache.finish(&making, &name, &["usr/bin/qemu-system-x86_64", "version"])?;
        }
        Ok(Self { unpacked: Some(cache.note("qemu-latest", &name)?), version: newest.version })
    }

    fn program(&self) -> PathBuf {
        let name = "usr/bin/qemu-system-x86_64";
        self.unpacked
            .as_ref()
            .map_or_else(|| PathBuf::from("qemu-system-x86_64"), |unpacked| unpacked.join(name))
    }
}

/// Returns a guest of this kind: the existing guest, unless it is to be rebuilt (`anew`). A patched kernel
/// has the patches `further` after the series.
pub(super) fn guest(cache: &Cache, kind: Kind, further: &[PathBuf], anew: bool) -> Result<Qemu> {
    match kind {
        Kind::Qemu => Qemu::stock(cache, anew),
        Kind::Patched => Qemu::patched(cache, &Patched::patches(further)?, anew),
    }
}

#[cfg(test)]
mod packages {
    use super::*;

    #[test]
    fn of_the_kernel_packages_the_plain_signed_one_is_booted() {
        assert_eq!(release_of("linux-binary-7.3.4+deb13-amd64").as_deref(), Some("7.3.4+deb13-amd64"));
        for other in [
            "linux-binary-7.3.4+deb13-rt-amd64",
            "linux-binary-unsigned-7.3.4+deb13-amd64",
            "linux-image-amd64",
        ] {
            assert_eq!(release_of(other), None, "{other}");
        }
        assert_eq!(module_name("kernel/fs/9p/9p.ko.xz"), "9p");
    }

    /// Without this first line, the kernel cannot execute the script.
    #[test]
    fn the_first_process_names_its_interpreter() {
        assert!(include_str!("qemu-init.sh").starts_with("#!/bin/busybox sh\n"));
    }

    #[test]
    fn the_machines_cpus_are_known_among_its_threads() {
        assert_eq!([emulated_cpu("CPU 1/TCG"), emulated_cpu("qemu-system-x86")], [Some(1), None]);
        assert_eq!(read_cpu_list("0-2,5"), [0, 1, 2, 5]);
    }
}
