//! Turns the output of `netpolicy -o json show` on a real host into a recorded host for tests: `cargo run -p
//! netpolicy --example record_host -- CAPTURE crates/netpolicy/tests/hosts NAME ORIGIN`. Identifying or
//! secret parts are removed: processes and their sockets, MAC addresses, the RSS key, interrupt counts, and
//! unreadable parts. Devices, queues, NAPIs, interrupts and CPUs are kept.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use model::Host;

/// The maximum size of a capture.
const CAPTURE_BYTES_MAX: u64 = 64 << 20;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "example: a separate program, which may print")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [capture, directory, name, origin] = &arguments[..] else {
        eprintln!("usage: record_host CAPTURE DIRECTORY NAME ORIGIN");
        return ExitCode::from(2);
    };
    match record(Path::new(capture), Path::new(directory), name, origin) {
        Ok(words) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("record: {why}");
            ExitCode::FAILURE
        }
    }
}

fn record(capture: &Path, directory: &Path, name: &str, origin: &str) -> Result<String, String> {
    let of = |error: std::io::Error| format!("{}: {error}", capture.display());
    if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') || name.is_empty() {
        return Err(format!("`{name}` is not a name: lower-case letters, digits and dashes"));
    }
    if origin.chars().any(|c| c == '"' || c == '\\' || c.is_control()) {
        return Err("the origin is one line without quotes".to_owned());
    }
    if std::fs::metadata(capture).map_err(of)?.len() > CAPTURE_BYTES_MAX {
        return Err(format!("{} is larger than {CAPTURE_BYTES_MAX} bytes", capture.display()));
    }
    let text = std::fs::read_to_string(capture).map_err(of)?;
    let host = scrubbed(read(&text)?);
    let json = serde_json::to_string_pretty(&host).map_err(|error| error.to_string())?;
    let file = directory.join(format!("{name}.json"));
    for (path, text) in
        [(file.clone(), json + "\n"), (directory.join(format!("{name}.toml")), described(&host, origin))]
    {
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(format!("{} with {} devices, of Linux {}", file.display(), host.devices.len(), host.release))
}

/// Parses the host in a document of `netpolicy -o json show`.
fn read(text: &str) -> Result<Host, String> {
    let mut document: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document["kind"] != "host" {
        return Err("this is not the output of `netpolicy -o json show`".to_owned());
    }
    serde_json::from_value(document["data"].take()).map_err(|error| error.to_string())
}

fn scrubbed(mut host: Host) -> Host {
    host.processes.clear();
    host.listeners.clear();
    host.app_requests.clear();
    host.unread.clear();
    host.pressure = None;
    host.irqs.iter_mut().for_each(|irq| irq.counts.clear());
    for (device, place) in host.devices.iter_mut().zip(1_u16..) {
        let [high, low] = place.to_be_bytes();
        if let Some(mac) = &mut device.link.mac {
            *mac = format!("02:00:00:00:{high:02x}:{low:02x}");
        }
        if let Some(rss) = &mut device.rss {
            rss.key.fill(1);
        }
        device.holders.clear();
    }
    host
}

/// Describes the capture's origin, as TOML.
fn described(host: &Host, origin: &str) -> String {
    let mut text = format!("origin = \"{origin}\"\nkernel = \"{}\"\n", host.release);
    for device in &host.devices {
        let _ = writeln!(
            text,
            "\n[[device]]\nname = \"{}\"\nkind = \"{}\"\nqueues = {}\nnapis = {}",
            device.id.name,
            device.kind,
            device.rx_queues.len(),
            device.napis.len()
        );
    }
    text
}
