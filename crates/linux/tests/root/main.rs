//! Tests this crate on the running kernel. The tests need root, and each test names its further needs. On a
//! machine that lacks one of them, the test is listed as ignored with the reason.

mod app_requests;
mod delivery;
mod device;
mod epolls;
mod events_only;
#[path = "../../examples/socket_policy.rs"]
mod example;
mod follow;
mod foreign;
mod guest_nics;
mod guest_steering;
mod holders;
mod interrupts;
mod irqbalance;
mod knobs;
mod kthread;
mod lab;
mod live;
mod netdevsim;
mod netns;
mod nic;
mod paths;
mod preload;
mod process;
mod role;
mod suspension;
mod transaction;
mod uring;

fn main() {
    if let Ok(role) = std::env::var(testkit::subject::ROLE) {
        return role::play(&role).expect("a role runs to its end");
    }
    testkit::run([
        netns::tests(),
        device::tests(),
        knobs::tests(),
        kthread::tests(),
        nic::tests(),
        process::tests(),
        foreign::tests(),
        uring::tests(),
        preload::tests(),
        delivery::tests(),
        epolls::tests(),
        events_only::tests(),
        suspension::tests(),
        follow::tests(),
        lab::tests(),
        live::tests(),
        guest_nics::tests(),
        guest_steering::tests(),
        holders::tests(),
        paths::tests(),
        interrupts::tests(),
        irqbalance::tests(),
        netdevsim::tests(),
        app_requests::tests(),
    ]);
}
