//! Describes settings for error messages.

use model::Setting;
use sys::error::KernelError;

/// Returns the error for a setting that the driver does not support.
pub(super) fn lacking(setting: &Setting) -> KernelError {
    let what = format!("{}: {}", setting.object(), setting.knob());
    KernelError::absent(what, format!("a driver with {}", setting.knob()), Some(setting.since()))
}

/// Describes a write: `eth0 rx-4: defer-hard-irqs 100, gro-flush-timeout 20us`.
pub(super) fn written(settings: &[Setting]) -> String {
    let values: Vec<_> = settings.iter().map(|s| format!("{} {}", s.knob(), s.value())).collect();
    settings.first().map_or_else(String::new, |first| format!("{}: {}", first.object(), values.join(", ")))
}

/// Describes a read: `eth0 rx-4: defer-hard-irqs, gro-flush-timeout`.
pub(super) fn asked(settings: &[Setting]) -> String {
    let knobs: Vec<_> = settings.iter().map(Setting::knob).collect();
    settings.first().map_or_else(String::new, |first| format!("{}: {}", first.object(), knobs.join(", ")))
}

/// Adds the object and the setting to the front of an error, unless the error names them itself.
pub(super) fn about(what: &str, error: KernelError) -> KernelError {
    let object = what.split(": ").next().unwrap_or(what);
    if error.what.starts_with(object) {
        return error;
    }
    KernelError { what: format!("{what}: {}", error.what), cause: error.cause }
}
