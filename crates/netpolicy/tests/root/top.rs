//! `top` on a lab under load.

use std::net::UdpSocket;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{MemcachedOptions, SERVER_ADDRESS};

use crate::operator::Operator;
use crate::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached, Need::Bpf];
    vec![
        test("top/one_reading_says_what_is_set_and_who_delivered", NEEDS, one_reading),
        test("top/without_a_terminal_it_says_what_to_call_instead", &[Need::Root], without_a_terminal),
    ]
}

fn one_reading() -> Result<(), Failed> {
    let operator = Operator::new("top", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.runs(&["set", "device", "veth-server", "defer200"], 0)?;
    let traffic = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&operator));
        let read = operator.runs(&["-o", "json", "top", "--once", "--interval", "2"], 0);
        sending.join().map_err(|_| "the sender panicked")??;
        read
    })?;
    let read: serde_json::Value = serde_json::from_str(&traffic.data)?;
    let queue = &read["data"]["queues"][0];
    assert_eq!((queue["device"].as_str(), queue["set"].as_str()), (Some("veth-server"), Some("defer 200us")));
    let packets = queue["packets"].as_f64().unwrap_or(0.0);
    assert!(packets > 10.0, "500 datagrams a second came by it: {read}");
    let shares = &queue["shares"];
    let sum: f64 =
        ["interrupt", "timer", "application", "kthread"].iter().filter_map(|s| shares[*s].as_f64()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{shares}");
    let cpus = read["data"]["cpus"].as_array().map_or(0, Vec::len);
    assert_eq!(cpus, std::thread::available_parallelism()?.get());
    drop(server);
    Ok(())
}

/// Datagrams from the client's host to nobody, for three seconds.
fn send(operator: &Operator) -> Result<(), Failed> {
    let socket = operator.lab.client().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    for _ in 0..1_500 {
        // That nobody listens comes back as an error now and then.
        let _ = socket.send_to(b"x", (SERVER_ADDRESS, 9));
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn without_a_terminal() -> Result<(), Failed> {
    let operator = Operator::new("top-none", 1)?;
    let refused = operator.runs(&["top"], 2)?;
    assert!(refused.words.contains("top --once"), "{}", refused.words);
    Ok(())
}
