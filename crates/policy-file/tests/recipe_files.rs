//! Checks what recipe files may contain, how each mistake is shown, and the content of the shipped files.

use model::recipe::{Circumstances, Mechanism, RecipeValue};
use model::{CoalesceParam, DeliveryMode, PolicyName};
use policy_file::{SHIPPED, parse_recipes, recipes};

/// Every kind of mistake that a single file can have, with an example.
const MISTAKES: &[(&str, &str)] = &[
    ("a_kind_of_section_that_is_misspelt", "[recpie.latency.layout]\nvalue = \"one-to-one\"\n"),
    ("a_policy_that_is_misspelt", "[recipe.latecny.layout]\nvalue = \"one-to-one\"\n"),
    ("a_mechanism_that_is_misspelt", "[recipe.latency.rx-usec]\nvalue = 8\n"),
    ("a_key_that_is_misspelt", "[recipe.latency.rx-usecs]\nvalue = 8\nbecause = \"x\"\n"),
    ("no_value", "[recipe.latency.rx-usecs]\nwhy = \"x\"\n"),
    ("a_number_that_is_text", "[recipe.latency.rx-usecs]\nvalue = \"8\"\n"),
    ("a_number_below_zero", "[recipe.latency.rx-usecs]\nvalue = -1\n"),
    ("a_switch_that_is_a_number", "[recipe.latency.adaptive-rx]\nvalue = 1\n"),
    ("a_layout_that_is_misspelt", "[recipe.latency.layout]\nvalue = \"rx-per-cpu\"\n"),
    ("a_mode_that_no_file_can_give", "[recipe.latency.delivery]\nvalue = \"fullbusy\"\n"),
    ("a_number_of_the_host_of_a_driver", "[driver.igb.any.netdev_budget]\nvalue = 600\n"),
    ("a_case_without_conditions", "[case.x.latency.delivery]\nvalue = \"interrupt\"\n"),
    ("a_case_without_a_condition", "[case.x.when]\n[case.x.latency.delivery]\nvalue = \"interrupt\"\n"),
    ("a_condition_that_is_misspelt", "[case.x.when]\nown-interupts = false\n"),
    ("a_condition_that_no_place_can_meet", "[case.x.when]\nepoll-napis = \"two\"\n"),
    ("a_measurement_on_no_list", "[recipe.cpu.delivery]\nvalue = \"defer200\"\nmeasured-on = \"veth\"\n"),
    ("a_value_without_its_table", "[recipe.latency]\nrx-usecs = 8\n"),
    ("a_driver_without_a_policy", "[driver.igb]\ntx-usecs = { value = 8 }\n"),
    ("a_reason_that_is_a_number", "[recipe.latency.rx-usecs]\nvalue = 8\nwhy = 1\n"),
    ("a_ladder_of_a_policy_that_has_none", "[[ladder.mix]]\nvalue = \"defer20\"\n"),
    ("a_ladder_that_is_no_list", "[ladder.latency]\nvalue = \"defer20\"\n"),
    ("a_rung_without_a_mode", "[[ladder.latency]]\nvalue = \"keep\"\n"),
    ("a_rung_with_a_key_that_is_misspelt", "[[ladder.latency]]\nvalue = \"defer20\"\nwhne = {}\n"),
    ("a_rung_that_no_daemon_can_try", "[[ladder.latency]]\nvalue = \"fullbusy\"\n"),
    (
        "a_rung_that_is_given_twice",
        "[[ladder.cpu]]\nvalue = \"defer20\"\n[[ladder.cpu]]\nvalue = \"defer:20us\"\n",
    ),
    (
        "a_rung_under_a_condition_that_is_misspelt",
        "[[ladder.cpu]]\nvalue = \"defer20\"\nwhen = { own-interupts = true }\n",
    ),
    (
        "a_mechanism_that_is_given_twice",
        "[recipe.latency.xps]\nvalue = true\n[recipe.latency.xps]\nvalue = false\n",
    ),
];

#[test]
fn every_mistake_is_drawn_with_its_place_and_with_what_was_probably_meant() {
    for (name, toml) in MISTAKES {
        let mistakes = parse_recipes("10-site.toml", toml).expect_err(name);
        insta::assert_snapshot!(*name, mistakes.to_string());
    }
}

#[test]
fn the_shipped_recipes_have_a_word_on_every_mechanism_with_its_reason_and_source() {
    let recipes = recipes(&[]).expect("well-formed");
    for policy in PolicyName::ALL {
        for mechanism in Mechanism::all() {
            let found = recipes.of(policy, mechanism);
            assert!(found.is_some(), "{policy}: no word on {mechanism}");
        }
    }
    for (name, text) in SHIPPED {
        let reasons = text.matches("\nwhy = \"").count();
        assert_eq!(reasons, text.matches("\nvalue = ").count(), "{name}: a value without its reason");
        assert_eq!(reasons, text.matches("\nsource = \"").count(), "{name}: a reason without its source");
    }
}

#[test]
fn every_shipped_mode_names_the_devices_on_which_it_was_measured() {
    let recipes = recipes(&[]).expect("well-formed");
    let places = ["veth", "tun", "mlx5_core", "virtio_net"].map(|driver| Circumstances {
        driver: driver.to_owned(),
        own_interrupts: Some(!matches!(driver, "veth" | "tun")),
        epoll_napis: None,
    });
    for policy in PolicyName::ALL {
        for place in &places {
            let found = recipes.under(policy, place)[&Mechanism::Delivery];
            let kernels_own = found.value == RecipeValue::Delivery(DeliveryMode::Interrupt);
            assert!(kernels_own || !found.measured_on.is_empty(), "{policy} on {place:?}: {:?}", found.value);
            assert!(
                place.driver != "veth" || !found.is_unmeasured_on("veth"),
                "{policy}: this machine has veths"
            );
        }
    }
}

#[test]
fn without_interrupts_of_its_own_a_device_gets_no_mode_that_suspends_them() {
    let recipes = recipes(&[]).expect("well-formed");
    let veth = Circumstances { driver: "veth".to_owned(), own_interrupts: Some(false), epoll_napis: None };
    for policy in PolicyName::ALL {
        let found = recipes.under(policy, &veth);
        let RecipeValue::Delivery(mode) = &found[&Mechanism::Delivery].value else {
            panic!("{policy} has a mode")
        };
        assert!(mode.params().irq_suspend_timeout.is_zero(), "{policy}: {mode}");
        assert_ne!(
            found[&Mechanism::Reuseport].value,
            RecipeValue::ByQueue,
            "{policy}: the hash gives every worker its share"
        );
    }
    let mode = |policy| recipes.under(policy, &veth)[&Mechanism::Delivery].value.clone();
    assert_eq!(mode(PolicyName::Latency), RecipeValue::Delivery(DeliveryMode::Interrupt));
    assert!(matches!(mode(PolicyName::Cpu), RecipeValue::Delivery(DeliveryMode::Defer { .. })));
}

#[test]
fn power_never_polls_and_none_leaves_everything_as_it_is() {
    let recipes = recipes(&[]).expect("well-formed");
    let Some(RecipeValue::Delivery(mode)) =
        recipes.of(PolicyName::Power, Mechanism::Delivery).map(|i| &i.value)
    else {
        panic!("power has a mode")
    };
    let params = mode.params();
    assert!(
        !params.epoll.waits_busily() && mode.polling_cpus_per_napi() + mode.polling_cpus_per_thread() == 0
    );
    assert!(params.irq_suspend_timeout.is_zero());
    for mechanism in Mechanism::all().filter(|mechanism| *mechanism != Mechanism::Delivery) {
        assert_eq!(
            recipes.of(PolicyName::None, mechanism).map(|i| &i.value),
            Some(&RecipeValue::Keep),
            "{mechanism}"
        );
    }
}

#[test]
fn a_ladder_has_rungs_for_every_kind_of_device_and_a_sites_own_replaces_it_whole() {
    let shipped = recipes(&[]).expect("well-formed");
    for policy in PolicyName::optimizing() {
        for own in [true, false] {
            let place = Circumstances { own_interrupts: Some(own), ..Circumstances::default() };
            let RecipeValue::Delivery(chosen) = shipped.under(policy, &place)[&Mechanism::Delivery].value
            else {
                panic!("{policy} has a mode")
            };
            let ladder = shipped.ladder(policy);
            let others = ladder.iter().filter(|rung| rung.is_for(std::slice::from_ref(&place)));
            assert!(
                others.filter(|rung| rung.mode != chosen).count() >= 2,
                "{policy}, own {own}: {ladder:?}"
            );
        }
    }
    assert!(shipped.ladder(PolicyName::None).is_empty() && shipped.ladder(PolicyName::Mix).is_empty());
    let text = "[[ladder.latency]]\nvalue = \"defer:2ms\"\n[[ladder.latency]]\nvalue = \"interrupt\"\nwhen = { driver = \"veth\" }\n";
    let own = recipes(&[("10-site.toml".to_owned(), text.to_owned())]).expect("well-formed");
    let modes: Vec<String> =
        own.ladder(PolicyName::Latency).iter().map(|rung| rung.mode.to_string()).collect();
    assert_eq!(modes, ["defer2000", "interrupt"]);
    let last = &own.ladder(PolicyName::Latency)[1];
    assert_eq!(last.because.source, "10-site.toml:3");
    assert!(!last.is_for(&[]), "an unknown value meets no condition");
    assert_eq!(own.ladder(PolicyName::Bulk), shipped.ladder(PolicyName::Bulk));
}

#[test]
fn a_sites_file_replaces_one_mechanism_and_says_where_it_stands() {
    let site = ("/etc/netpolicy/recipes.d/10-site.toml", "# ours\n[recipe.bulk.rx-usecs]\nvalue = 80\n");
    let with_site = recipes(&[(site.0.to_owned(), site.1.to_owned())]).expect("well-formed");
    let mechanism = Mechanism::Coalescing(CoalesceParam::RxUsecs);
    let found = with_site.of(PolicyName::Bulk, mechanism).expect("there");
    assert_eq!(found.value, RecipeValue::Number(80));
    assert_eq!(found.because.source, "/etc/netpolicy/recipes.d/10-site.toml:2");
    let shipped = recipes(&[]).expect("well-formed");
    let other = Mechanism::Coalescing(CoalesceParam::TxUsecs);
    assert_eq!(with_site.of(PolicyName::Bulk, other), shipped.of(PolicyName::Bulk, other));
    assert_eq!(with_site.of(PolicyName::Cpu, mechanism), shipped.of(PolicyName::Cpu, mechanism));
}
