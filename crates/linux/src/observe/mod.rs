//! (being written)
/// (being written)
#[derive(Debug)]
pub struct Processes;
/// (being written)
pub fn observe() {}
