//! End-to-end tests on the running kernel. They need root. Each test declares its other needs; on a machine
//! that lacks one, the test is listed as ignored, with the reason.

mod answers;
mod api;
mod app_requests;
mod applied;
mod attached;
mod balanced;
mod compared;
mod container;
mod counted;
mod daemon;
mod daemon_asked;
mod daemon_spared;
mod datagrams;
#[path = "../../../daemon/tests/desk/mod.rs"]
#[expect(dead_code, reason = "the tests without root count the daemon's turns and read its metrics")]
mod desk;
mod dns;
mod driver_facts;
mod engaged;
mod expected;
mod fleet;
mod goals;
mod guarded;
mod judged;
mod kthreads;
mod lacking;
mod monitored;
mod pages;
mod pods;
mod proven;
mod queues;
mod recordings;
mod remedy;
mod requests;
mod rollout;
mod searched;
mod selected;
mod services;
mod sessions;
mod spread;
mod stacks;
mod stepped;
mod support;
mod surface;
mod takeover;
mod tools;
mod top;
mod trial;
mod tuned;
mod undone;
mod units;
mod unprivileged;
mod upgrade;
mod watched;

fn main() {
    if attached::play_role().is_some() || app_requests::play_role().is_some() || spread::play_role().is_some()
    {
        return;
    }
    testkit::run([
        answers::tests(),
        api::tests(),
        applied::tests(),
        top::tests(),
        tools::tests(),
        trial::tests(),
        attached::tests(),
        takeover::tests(),
        balanced::tests(),
        container::tests(),
        daemon::tests(),
        daemon_asked::tests(),
        daemon_spared::tests(),
        datagrams::tests(),
        dns::tests(),
        driver_facts::tests(),
        engaged::tests(),
        expected::tests(),
        fleet::tests(),
        goals::tests(),
        judged::tests(),
        kthreads::tests(),
        lacking::tests(),
        monitored::tests(),
        remedy::tests(),
        proven::tests(),
        queues::tests(),
        recordings::tests(),
        rollout::tests(),
        searched::tests(),
        selected::tests(),
        services::tests(),
        sessions::tests(),
        support::tests(),
        stacks::tests(),
        surface::tests(),
        undone::tests(),
        unprivileged::tests(),
        pages::tests(),
        pods::tests(),
        spread::tests(),
        app_requests::tests(),
        upgrade::tests(),
        stepped::tests(),
        watched::tests(),
        counted::tests(),
        compared::tests(),
        tuned::tests(),
        guarded::tests(),
        // Run these tests last: they make systemd process 1, and other tests should not run under it.
        units::tests(),
    ]);
}
