//! The only way from this room to a host.

use model::Setting;

/// A host whose settings can be read and written: the running kernel, or a test's fake.
pub trait Knobs {
    /// What goes wrong at the host.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What these knobs are set to now: the same knobs of the same object, in the same order. The values in
    /// `like` do not matter. All of `like` belongs to one object ([`model::Setting::object`]).
    ///
    /// # Errors
    /// If the object is gone or a knob cannot be read.
    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Self::Error>;

    /// Writes the settings, all of one object, in one call to the kernel where its interface allows. Does not
    /// read back: `commit` does.
    ///
    /// # Errors
    /// If the kernel refuses. Some of the settings may have been written then.
    fn write(&mut self, settings: &[Setting]) -> Result<(), Self::Error>;
}
