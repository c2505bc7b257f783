//! Compares every construct with the bytes that iproute2 6.1 sent for the same line.

mod recorded;

use recorded::{bytes, device, encoded};
use tc_rules::{Batch, Table};

const CAPTURED: &str = include_str!("golden/iproute2-6.1.hex");

/// The device indices at capture time, and the lines with their bytes.
fn captured() -> (Table, Vec<(&'static str, Vec<u8>)>) {
    let mut lines = CAPTURED.lines().filter(|line| !line.starts_with('#'));
    let table = Table::of([(); 2].map(|()| device(lines.next().expect("a device"))));
    let lines: Vec<&str> = lines.collect();
    (table, lines.chunks(2).map(|pair| (pair[0], bytes(pair[1]))).collect())
}

#[test]
fn every_line_becomes_the_bytes_that_tc_sends() {
    let (mut table, lines) = captured();
    let mut wrong = String::new();
    for (line, expected) in &lines {
        match encoded(line, &mut table) {
            Ok(bytes) if bytes == *expected => {}
            Ok(bytes) => {
                let at = bytes.iter().zip(expected).take_while(|(a, b)| a == b).count();
                wrong.push_str(&format!(
                    "{line}\n  differs at byte {at} of {}\n  {bytes:02x?}\n  {expected:02x?}\n",
                    bytes.len()
                ));
            }
            Err(error) => wrong.push_str(&format!("{line}\n  {error}\n")),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(lines.len() >= 140, "only {} lines", lines.len());
}

#[test]
fn what_tc_refuses_is_refused() {
    let (mut table, _) = captured();
    let lines = include_str!("golden/refused.batch").lines().filter(|line| !line.starts_with('#'));
    let taken: Vec<&str> = lines.filter(|line| encoded(line, &mut table).is_ok()).collect();
    assert!(taken.is_empty(), "{taken:#?}");
}

#[test]
fn what_tc_takes_in_part_is_refused() {
    let (mut table, _) = captured();
    for line in [
        // iproute2 silently drops the last digit.
        "actions add action ct commit label 012/fff",
        "filter add dev d0 ingress protocol ip flower ct_label 012",
        // iproute2 skips the empty part and takes the direction as the index.
        "actions add action tunnel_key set src_ip 1.1.1.1 dst_ip 2.2.2.2 id 5 erspan_opts 2::1:63",
    ] {
        assert!(encoded(line, &mut table).is_err(), "{line}");
    }
}

#[test]
fn a_burst_that_is_longer_than_can_be_said_is_counted() {
    let (mut table, _) = captured();
    for (line, cut) in [
        ("actions add action police rate 8bit burst 274", 0),
        ("actions add action police rate 8bit burst 275", 1),
        ("actions add action police pkts_rate 1 pkts_burst 274", 0),
        ("actions add action police pkts_rate 1 pkts_burst 5000 action police rate 8bit burst 300", 2),
        ("filter add dev d0 ingress u32 match u32 0 0 police rate 8bit burst 300", 1),
    ] {
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
        assert_eq!(command.bursts_cut(), cut, "{line}");
    }
}

#[test]
fn what_is_said_twice_counts_as_it_is_said_last() {
    let (mut table, _) = captured();
    let place = "filter add dev d0 ingress protocol ip";
    for (twice, once) in [
        ("flower classid 1:1 flowid 1:2 action drop", "flower classid 1:2 action drop"),
        ("flower dst_ip 1.1.1.1 dst_ip 2.2.2.0/24", "flower dst_ip 2.2.2.0/24"),
        ("flower dst_ip 1.1.1.1 dst_ip 2.2.2.0/0", "flower"),
        ("matchall classid 1:1 action drop classid 1:3", "matchall classid 1:3 action drop"),
        ("u32 match u32 0 0 classid 1:1 flowid 1:2", "u32 match u32 0 0 classid 1:2"),
        ("flower action ct commit zone 1 zone 2 mark 3 mark 4", "flower action ct commit zone 2 mark 4"),
        (
            "flower action tunnel_key set src_ip 1.1.1.1 src_ip 1.1.1.2 dst_ip 2.2.2.2 id 5 id 6",
            "flower action tunnel_key set src_ip 1.1.1.2 dst_ip 2.2.2.2 id 6",
        ),
    ] {
        let [twice, once] = [twice, once].map(|rule| {
            let line = format!("{place} {rule}");
            let mut batch = Batch::new(line.as_bytes());
            let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
            command.rule().expect("a rule").canonical()
        });
        assert_eq!(twice, once);
    }
}

#[test]
fn every_line_was_captured() {
    let file = include_str!("golden/lines.batch");
    let lines: Vec<&str> =
        file.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).collect();
    assert_eq!(lines, captured().1.iter().map(|(line, _)| *line).collect::<Vec<_>>());
}

#[test]
fn the_words_for_a_rule_mean_the_same_rule() {
    let (mut table, lines) = captured();
    let mut printed = 0;
    for (line, _) in &lines {
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
        let Some(rule) = command.rule().filter(|rule| rule.verb == tc_rules::Verb::Add).cloned() else {
            continue;
        };
        let Some(words) = rule.words(&mut table) else { continue };
        let mut again = Batch::new(words.as_bytes());
        let (_, command) = again
            .next_command(&mut table)
            .unwrap_or_else(|e| panic!("{line}\n{words}\n{e}"))
            .expect("a command");
        assert_eq!(command.rule().expect("a rule").canonical(), rule.canonical(), "\n{line}\n{words}");
        printed += 1;
    }
    assert!(printed >= 45, "only {printed} rules could be formatted");
}

#[test]
fn a_rule_is_read_back_from_its_own_bytes() {
    let (mut table, lines) = captured();
    let mut read = 0;
    for (line, bytes) in &lines {
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
        let Some(rule) = command.rule().filter(|rule| rule.verb == tc_rules::Verb::Add).cloned() else {
            continue;
        };
        if line.contains("label") {
            continue; // The kernel dumps all bytes of labels, even if fewer were sent.
        }
        let mut decoded = tc_rules::Filter::default();
        let mut body = bytes[16..].to_vec();
        if rule.handle == 0 {
            body[8..12].copy_from_slice(&1_u32.to_ne_bytes()); // As if the kernel had chosen the value.
        }
        if decoded.decode(&body).unwrap_or_else(|e| panic!("{line}: {e}")).is_none() {
            continue;
        }
        if rule.handle == 0 {
            decoded.handle = 0;
        }
        assert_eq!(decoded.canonical(), rule.canonical(), "\n{line}");
        read += 1;
    }
    assert!(read >= 45, "only {read} rules were read back");
}
