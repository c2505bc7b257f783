//! (being written)
mod error;
pub use error::{Cause, Errno, KernelError};
