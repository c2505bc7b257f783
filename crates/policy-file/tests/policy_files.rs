//! Checks what policy files may contain, and how each mistake is shown.

use policy_file::{PolicyFile, json_schema, merge, parse};

/// Every kind of mistake that a single file can have, with an example.
const MISTAKES: &[(&str, &str)] = &[
    ("a_key_that_is_misspelt", "[device.eth0]\npolcy = \"latency\"\n"),
    ("a_key_with_dashes", "[device.eth0]\npolicy = \"latency\"\ngro-flush-timeout = \"20us\"\n"),
    ("a_key_like_no_other", "[device.eth0]\nxyzzy = 1\n"),
    (
        "a_key_of_a_table_that_is_misspelt",
        "[service.cache]\nmatch = { unti = \"memcached.service\" }\npolicy = \"latency\"\n",
    ),
    ("a_key_of_another_kind_of_section", "[device.eth0]\npolicy = \"latency\"\nmatch = { port = 80 }\n"),
    ("a_kind_of_section_that_is_misspelt", "[devcie.eth0]\npolicy = \"latency\"\n"),
    ("a_section_without_a_name", "[device]\npolicy = \"latency\"\n"),
    ("a_device_name_that_is_too_long", "[device.averyveryverylongname]\npolicy = \"latency\"\n"),
    ("a_device_name_with_a_slash", "[device.\"eth0/1\"]\npolicy = \"latency\"\n"),
    ("a_policy_that_does_not_exist", "[device.eth0]\npolicy = \"latecny\"\n"),
    ("a_mode_where_a_policy_is_asked", "[device.eth0]\npolicy = \"suspend20\"\n"),
    ("a_mode_that_is_misspelt", "[device.eth0]\ndelivery = \"supsend50\"\n"),
    ("a_policy_where_a_mode_is_asked", "[device.eth0]\ndelivery = \"latency\"\n"),
    ("a_span_without_a_unit", "[device.eth0]\npolicy = \"latency\"\ngro_flush_timeout = 20\n"),
    ("a_span_with_a_wrong_unit", "[device.eth0]\npolicy = \"latency\"\ngro_flush_timeout = \"20usec\"\n"),
    (
        "a_span_finer_than_a_nanosecond",
        "[device.eth0]\npolicy = \"latency\"\ngro_flush_timeout = \"0.5ns\"\n",
    ),
    ("a_goal_of_no_time_at_all", "[device.eth0]\npolicy = \"latency\"\ngoal = { p99 = \"0\" }\n"),
    ("a_goal_that_is_empty", "[device.eth0]\npolicy = \"latency\"\ngoal = {}\n"),
    (
        "a_guard_that_is_empty",
        "[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\nguard = {}\n",
    ),
    (
        "a_search_of_a_device",
        "[device.eth0]\npolicy = \"latency\"\ngoal = { p99 = \"1ms\", on_missed = \"search\" }\n",
    ),
    (
        "a_search_that_is_misspelt",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"latency\"\ngoal = { p99 = \"1ms\", on_missed = \"serach\" }\n",
    ),
    (
        "a_time_for_a_goal_in_minutes",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"latency\"\ngoal = { p99 = \"1ms\", for = \"5m\" }\n",
    ),
    (
        "a_time_for_a_goal_that_is_too_short",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"latency\"\ngoal = { p99 = \"1ms\", for = \"1s\" }\n",
    ),
    ("a_number_out_of_range", "[device.eth0]\npolicy = \"latency\"\ndefer_hard_irqs = 2147483648\n"),
    ("a_number_below_zero", "[device.eth0]\npolicy = \"latency\"\ndefer_hard_irqs = -1\n"),
    ("a_port_that_is_text", "[service.a]\npolicy = \"latency\"\nmatch = { port = \"http\" }\n"),
    ("a_port_that_no_one_listens_on", "[service.a]\npolicy = \"latency\"\nmatch = { port = 0 }\n"),
    ("a_table_that_is_none", "[device.eth0]\npolicy = \"latency\"\ngoal = \"300us\"\n"),
    ("a_value_that_is_a_list", "[device.eth0]\npolicy = [\"latency\", \"bulk\"]\n"),
    ("cpus_that_are_no_list", "[device.eth0]\npolicy = \"latency\"\ncpus = \"3-1\"\n"),
    ("cpus_that_are_none", "[device.eth0]\npolicy = \"latency\"\ncpus = \"\"\n"),
    ("an_empty_match", "[service.a]\npolicy = \"latency\"\nmatch = { exe = \"\" }\n"),
    ("a_setting_that_is_misspelt", "[device.eth0]\npolicy = \"none\"\nsettings = { rx-usec = 8 }\n"),
    (
        "a_setting_of_a_service",
        "[service.a]\npolicy = \"none\"\nmatch = { port = 80 }\nsettings = { rx-usecs = 8 }\n",
    ),
    ("a_switch_that_is_text", "[device.eth0]\npolicy = \"none\"\nsettings = { rx-gro = \"off\" }\n"),
    (
        "a_private_flag_without_a_value",
        "[device.eth0]\npolicy = \"none\"\nsettings = { private-flags = \"rx_striding_rq\" }\n",
    ),
    ("a_daemon_that_is_given_a_policy", "[daemon]\npolicy = \"latency\"\n"),
    ("a_part_of_a_second_that_is_too_short", "[daemon]\nsample = \"1ms\"\n"),
    ("a_part_of_a_second_without_a_unit", "[daemon]\nsample = 20\n"),
    (
        "a_sample_of_a_service",
        "[service.a]\nmatch = { port = 80 }\npolicy = \"latency\"\nsample = \"20ms\"\n",
    ),
    ("a_pattern_for_names_that_is_none", "[device.\"eth[0-3\"]\npolicy = \"latency\"\n"),
    (
        "conditions_of_a_device_that_are_misspelt",
        "[device.uplink]\npolicy = \"latency\"\nmatch = { drivr = \"ice\", not = { spede = \"25G\" } }\n",
    ),
    (
        "conditions_of_a_device_with_wrong_values",
        "[device.uplink]\npolicy = \"latency\"\nmatch = { carries = \"default\", speed = \"fast\", name = [], pci = [7] }\n",
    ),
    (
        "not_that_is_no_table",
        "[device.uplink]\npolicy = \"latency\"\nmatch = { name = \"*\", not = \"eth0\" }\n",
    ),
    (
        "a_list_with_a_pattern_that_is_none",
        "[service.web]\npolicy = \"bulk\"\nmatch = { exe = [\"nginx\", \"hap[\"] }\n",
    ),
    ("text_that_is_not_toml", "[device.eth0\npolicy = latency\n"),
    ("a_key_that_is_given_twice", "[device.eth0]\npolicy = \"latency\"\npolicy = \"bulk\"\n"),
    (
        "a_section_that_is_given_twice",
        "[device.eth0]\npolicy = \"latency\"\n[device.eth0]\npolicy = \"bulk\"\ncpus = \"0\"\n",
    ),
    (
        "several_mistakes_together",
        "# a cache\n[service.cache]\nmatch = { unit = 7 }\npolcy = \"latency\"\ngoal = { p98 = \"300us\" }\n\n[device.eth0]\n\tpolicy = \"fast\"\n",
    ),
];

/// Mistakes that only appear when files are merged, with examples.
const CONTRADICTIONS: &[(&str, &str)] = &[
    ("a_section_that_asks_for_nothing", "[device.eth0]\ncpus = \"0-3\"\n"),
    ("a_service_that_matches_nothing", "[service.cache]\npolicy = \"latency\"\n"),
    ("mix_for_a_service", "[service.cache]\npolicy = \"mix\"\nmatch = { port = 11211 }\n"),
    (
        "a_suspension_shorter_than_the_flush",
        "[device.eth0]\ndelivery = \"suspend20\"\nirq_suspend_timeout = \"10us\"\n",
    ),
    (
        "a_device_with_a_pattern_for_its_name_and_a_match",
        "[device.\"eth*\"]\npolicy = \"latency\"\nmatch = { driver = \"ice\" }\n",
    ),
    (
        "a_match_that_only_leaves_devices_out",
        "[device.uplink]\npolicy = \"latency\"\nmatch = { not = { driver = \"veth\" } }\n",
    ),
    ("a_suspension_without_deferral", "[device.eth0]\ndelivery = \"suspend20\"\ndefer_hard_irqs = 0\n"),
    ("a_suspension_without_a_timer", "[device.eth0]\ndelivery = \"suspend20\"\ngro_flush_timeout = \"0\"\n"),
    (
        "a_time_for_a_goal_that_is_none",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"latency\"\ngoal = { for = \"60s\" }\n",
    ),
    (
        "a_search_for_a_goal_that_is_none",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"latency\"\ngoal = { on_missed = \"search\" }\n",
    ),
    (
        "a_search_beside_a_mode_that_is_named",
        "[service.a]\nmatch = { port = 1 }\ndelivery = \"suspend20\"\ngoal = { p99 = \"1ms\", on_missed = \"search\" }\n",
    ),
    (
        "a_search_where_the_kernel_decides",
        "[service.a]\nmatch = { port = 1 }\npolicy = \"none\"\ngoal = { p99 = \"1ms\", on_missed = \"search\" }\n",
    ),
];

fn file(name: &str, text: &str) -> PolicyFile {
    parse(name, text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

#[test]
fn every_mistake_is_drawn_with_its_place_and_the_nearest_valid_name() {
    for (case, text) in MISTAKES {
        let mistakes = parse("policy.d/10-cache.toml", text).expect_err(case);
        insta::assert_snapshot!(*case, mistakes);
    }
}

#[test]
fn what_cannot_work_together_is_refused_before_the_host_is_looked_at() {
    for (case, text) in CONTRADICTIONS {
        let mistakes = merge(&[file("policy.d/10-cache.toml", text)]).expect_err(case);
        insta::assert_snapshot!(*case, mistakes);
    }
}

#[test]
fn a_whole_file_becomes_a_policy() {
    let text = "\
[device.eth0]
policy = \"mix\"
cpus   = \"0-3\"

[service.memcached]
match  = { unit = \"memcached.service\", port = 11_211, uid = 0x65 }
policy = \"latency\"
delivery = \"suspend:1.5ms\"
defer_hard_irqs = 50
goal   = { p50 = \"100us\", p99 = \"300us\" }
budget.polling_cpus = 4
budget.added_delay = \"20us\"
";
    let merged = merge(&[file("10-cache.toml", text)]).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    insta::assert_debug_snapshot!(merged.policy());
}

#[test]
fn an_empty_file_asks_for_nothing() {
    let merged = merge(&[file("empty.toml", "")]).expect("nothing to contradict");
    assert!(merged.policy().intents.is_empty());
}

#[test]
fn a_later_file_replaces_key_by_key_and_a_later_policy_replaces_its_details() {
    let vendor = file(
        "10-vendor.toml",
        "[device.eth0]\npolicy = \"latency\"\ndelivery = \"suspend20\"\ncpus = \"0-3\"\n",
    );
    let cpus = file("20-cpus.toml", "[device.eth0]\ncpus = \"4-7\"\n");
    let bulk = file("30-bulk.toml", "[device.eth0]\npolicy = \"bulk\"\n");
    let asks = |files: &[PolicyFile]| {
        let merged = merge(files).expect("merges");
        merged.sections[0]
            .asks
            .iter()
            .map(|(v, at)| format!("{} = {} # {at}", v.path(), v.toml()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        asks(&[vendor.clone(), cpus.clone()]),
        [
            "policy = \"latency\" # 10-vendor.toml:2",
            "delivery = \"suspend20\" # 10-vendor.toml:3",
            "cpus = \"4-7\" # 20-cpus.toml:2"
        ]
    );
    assert_eq!(
        asks(&[vendor, cpus, bulk]),
        ["cpus = \"4-7\" # 20-cpus.toml:2", "policy = \"bulk\" # 30-bulk.toml:2"]
    );
}

#[test]
fn the_schema_knows_every_key() {
    insta::assert_snapshot!(format!("{:#}", json_schema()));
}

#[test]
fn selectors_are_written_as_they_were_read() {
    let text = "[device.\"eth*\"]\npolicy = \"bulk\"\n\n[device.uplink]\npolicy = \"latency\"\nmatch = { driver = [\"ice\", \"mlx5*\"], mac = \"AA:bb:*\", carries = \"default-route\", speed = \">=25G\", not = { pci = \"0000:3b:00.1\" } }\n\n[service.web]\npolicy = \"cpu\"\nmatch = { exe = [\"/usr/sbin/nginx\", \"haproxy*\"], pod = \"shop/*\", container = \"web\" }\n";
    let merged = merge(&[file("10.toml", text)]).expect("no mistake");
    let targets: Vec<String> =
        merged.policy().intents.iter().map(|intent| format!("{:?}", intent.target)).collect();
    let mut written = String::new();
    for section in &merged.sections {
        written.push_str(&format!("[{}]\n", section.header()));
        for (value, _) in &section.asks {
            written.push_str(&format!("{} = {}\n", value.path(), value.toml()));
        }
    }
    let again = merge(&[file("10.toml", &written)]).expect("no mistake");
    let targets_again: Vec<String> =
        again.policy().intents.iter().map(|intent| format!("{:?}", intent.target)).collect();
    assert_eq!(targets, targets_again, "{written}");
    insta::assert_snapshot!(written);
}
