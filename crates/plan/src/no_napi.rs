//! Explains why a device has no NAPI, and how to give it one. Refusals, `doctor` and `init` share this text.

use model::host::Device;
use model::quoted;

/// Explains why a device has no NAPI, and how to give it one.
pub fn why_no_napi(device: &Device) -> String {
    if device.kind == "veth" {
        format!(
            "a veth has NAPIs only with GRO or XDP: `ethtool -K {} gro on`, and `ethtool -K PEER tso off` at the other end; with TSO on there, TCP packets bypass the NAPIs",
            quoted(device.id.name.as_str())
        )
    } else if device.up {
        format!("{} is up and lists no NAPI: its driver has none, or does not register its NAPIs", device.id)
    } else {
        format!("{} is down; many drivers have NAPIs only while they are up", device.id)
    }
}
