//! Tests device sections that select devices by a pattern or by `match`.

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use testkit::operator::{Operator, are, at_work, flushes, waited_for};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![
        test("selected/a_pattern_means_the_devices_that_meet_it_and_cat_says_which", NEEDS, by_pattern),
        test("selected/a_match_finds_the_device_that_the_default_route_goes_by", NEEDS, by_route),
        test("selected/two_sections_for_one_device_are_refused_with_both_places", NEEDS, clash),
        test("selected/the_daemon_follows_the_default_route", NEEDS, route_followed),
        test("selected/the_daemon_follows_a_device_that_comes_to_meet_a_pattern", NEEDS, followed),
    ]
}

/// `gro-flush-timeout` of suspend20 and of defer50, in nanoseconds.
const SUSPEND20: u64 = 20_000;
const DEFER50: u64 = 50_000;

fn by_pattern() -> Result<(), Failed> {
    let operator = Operator::new("selected-pattern", 2)?;
    let before = operator.host()?;
    operator.asks(
        "[device.\"veth-*\"]\ndelivery = \"suspend20\"\n\n\
         [device.fast]\ndelivery = \"defer50\"\nmatch = { driver = \"mlx5_core\" }\n",
    )?;
    let plan = operator.runs(&["plan"], 3)?;
    assert!(plan.words.contains(&format!("means {SERVER_DEVICE} here")), "{}", plan.words);
    assert!(plan.words.contains("devices fast: matches no device (driver mlx5_core)"), "{}", plan.words);
    let resolved = operator.runs(&["cat", "--resolved"], 0)?.data;
    assert!(resolved.contains(&format!("# here: {SERVER_DEVICE}")), "{resolved}");
    assert!(resolved.contains("# here: nothing"), "{resolved}");
    let json = operator.runs(&["-o", "json", "cat", "--resolved"], 0)?.data;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    assert_eq!(json["data"]["sections"][0]["meant"]["means"][0], SERVER_DEVICE, "{json}");
    assert_eq!(operator.host()?, before, "no setting was changed yet");

    operator.runs(&["apply"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [SUSPEND20; 2]);
    operator.runs(&["verify"], 0)?;
    let explained = operator.runs(&["explain", "veth-*"], 0)?.data;
    assert!(explained.contains("10-test.toml:2") && explained.contains("rx-1"), "{explained}");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before, "the whole host is as it was");
    Ok(())
}

fn by_route() -> Result<(), Failed> {
    let operator = Operator::new("selected-route", 1)?;
    operator.asks("[device.uplink]\ndelivery = \"suspend20\"\nmatch = { carries = \"default-route\" }\n")?;
    let said = operator.runs(&["plan"], 0)?;
    assert!(said.words.contains("matches no device"), "{}", said.words);
    operator.inside(&format!("ip route add default dev {SERVER_DEVICE}"))?;
    let before = operator.host()?;
    assert!(before.device_named(SERVER_DEVICE).is_some_and(|device| device.link.default_route));
    operator.runs(&["apply"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [SUSPEND20]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn clash() -> Result<(), Failed> {
    let operator = Operator::new("selected-clash", 1)?;
    let before = operator.host()?;
    operator.asks(
        "[device.\"veth-*\"]\ndelivery = \"suspend20\"\n\n[device.\"veth-ser*\"]\ndelivery = \"defer50\"\n",
    )?;
    let plan = operator.runs(&["plan"], 3)?;
    let covered = format!("{SERVER_DEVICE} is covered by the more specific devices veth-ser*");
    assert!(plan.words.contains(&covered), "{}", plan.words);
    operator.asks(
        "[device.\"veth-*\"]\ndelivery = \"suspend20\"\n\n[device.\"?eth-s*\"]\ndelivery = \"suspend20\"\n\n\
         [device.\"veth?se*\"]\ndelivery = \"defer50\"\n[device.\"v*h-ser*\"]\ndelivery = \"defer50\"\n",
    )?;
    let refused = operator.runs(&["apply"], 7)?;
    for words in ["neither is more specific", "10-test.toml:8", "10-test.toml:10"] {
        assert!(refused.words.contains(words), "{words}: {}", refused.words);
    }
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn followed() -> Result<(), Failed> {
    let operator = Operator::new("selected-followed", 2)?;
    let daemon = at_work(&operator, "[device.\"wan*\"]\ndelivery = \"defer50\"\n")?;
    are(&operator, &[0; 2])?;
    operator.changes_link(SERVER_DEVICE, &["name", "wan7"])?;
    are(&operator, &[DEFER50; 2])?;
    // The daemon reports the mode a moment after it is in force.
    waited_for("its status", || {
        Ok(operator.runs(&["status"], 0)?.data.contains("device wan7").then_some(()))
    })?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    are(&operator, &[0; 2])
}

fn route_followed() -> Result<(), Failed> {
    let operator = Operator::new("selected-route-followed", 1)?;
    let daemon = at_work(
        &operator,
        "[device.uplink]\ndelivery = \"defer50\"\nmatch = { carries = \"default-route\" }\n",
    )?;
    waited_for("the first look", || {
        let status: serde_json::Value =
            serde_json::from_str(&operator.runs(&["-o", "json", "status"], 0)?.data)?;
        Ok(status["data"]["counters"]["full_scans"].as_u64().filter(|looks| *looks > 0))
    })?;
    are(&operator, &[0])?;
    // A new route, such as one from DHCP, causes no event of its device, and the next full observation is a
    // minute away.
    operator.inside(&format!("ip route add default dev {SERVER_DEVICE}"))?;
    are(&operator, &[DEFER50])?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}
