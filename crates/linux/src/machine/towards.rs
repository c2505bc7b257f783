//! Finds the device that leads to an address, and the device that has an address.

use std::net::IpAddr;

use model::IfIndex;
use netlink::route::Routes;
use sys::error::KernelError;
use sys::netns::Netns;

/// Returns the device through which packets to this address leave a namespace; `None` without a route.
///
/// # Errors
/// If the request fails.
pub fn device_towards(netns: &Netns, address: IpAddr) -> Result<Option<IfIndex>, KernelError> {
    netns.run(|| Routes::open_here()?.device_towards(address))?
}

/// Returns the device of a namespace that has this address; `None` if no device has it.
///
/// # Errors
/// If the request fails.
pub fn device_with_address(netns: &Netns, address: IpAddr) -> Result<Option<IfIndex>, KernelError> {
    netns.run(|| Routes::open_here()?.device_with_address(address))?
}
