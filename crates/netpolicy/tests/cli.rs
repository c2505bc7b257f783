//! Tests the command as users see it: messages, exit codes, and the stream of each output. Nothing here
//! changes the host; tests that do are in `tests/root`.

use std::io::Read;
use std::process::{Command, Output, Stdio};

use testkit::command::{Scratch, command, netpolicy, text};

#[test]
fn a_mistake_on_the_command_line_ends_with_2_and_says_what_was_meant() {
    for (case, arguments) in [
        ("a_command_that_is_misspelt", &["shwo"][..]),
        ("a_command_like_one_that_is_not_for_operators", &["gard"]),
        ("a_policy_that_is_misspelt", &["set", "device", "eth0", "latecny"]),
        ("a_transaction_that_is_none", &["rollback", "../../etc"]),
        ("processes_that_are_none", &["show", "--processes", "nginx"]),
        ("attach_without_a_policy", &["attach", "1"]),
        ("run_without_a_command", &["run", "--policy", "latency"]),
        ("a_namespace_by_a_pid_that_is_none", &["--netns", "pid:x", "show"]),
    ] {
        let output = netpolicy(arguments);
        assert_eq!(output.status.code(), Some(2), "{case}");
        assert!(output.stdout.is_empty(), "{case}");
        insta::assert_snapshot!(format!("usage_{case}"), text(&output.stderr));
    }
}

#[test]
fn the_mistakes_of_all_policy_files_are_shown_and_nothing_is_touched() {
    let scratch = Scratch::new("mistakes");
    let a = scratch.file("10-a.toml", "[device.eth0]\npolcy = \"latency\"\n");
    let b = scratch.file("20-b.toml", "[service.x]\npolicy = \"latency\"\nmatch = { port = 0 }\n");
    let state = scratch.path("state");
    for command in ["plan", "apply", "try", "cat"] {
        let output = netpolicy(&["--state-dir", &state, "--policy-file", &a, "--policy-file", &b, command]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let words = text(&output.stderr).replace(&scratch.path(""), "");
        insta::assert_snapshot!("mistakes_in_two_files", words);
    }
    assert!(!scratch.0.path().join("state").exists(), "no journal was created");
}

#[test]
fn a_policy_file_that_is_not_there_is_a_mistake_of_the_command_line() {
    let output = netpolicy(&["--policy-file", "/nonexistent/policy.toml", "plan"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: /nonexistent/policy.toml: No such file or directory"));
}

#[test]
fn without_a_policy_plan_says_where_it_looked() {
    let scratch = Scratch::new("none");
    let dir = scratch.path("empty");
    std::fs::create_dir(&dir).expect("directory");
    let output = netpolicy(&["--policy-dir", &dir, "plan"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains(&format!("no file in {dir} requests anything")),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn cat_prints_one_file_with_the_origin_of_every_value() {
    let scratch = Scratch::new("cat");
    let dir = scratch.path("");
    scratch.file("10-a.toml", "[device.eth0]\npolicy = \"latency\"\ncpus = \"0-3\"\n");
    scratch.file("20-b.toml", "[device.\"br 0\"]\npolicy = \"bulk\"\n[device.eth0]\ncpus = \"4-7\"\n");
    let output = netpolicy(&["--policy-dir", &dir, "cat"]);
    // Like the kernel, netpolicy rejects a device name with a space.
    assert_eq!(output.status.code(), Some(2));
    scratch.file("20-b.toml", "[device.\"br.0\"]\npolicy = \"bulk\"\n[device.eth0]\ncpus = \"4-7\"\n");
    let output = netpolicy(&["--policy-dir", &dir, "cat"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout).replace(&dir, ""));
    // `cat` prints a policy file that is equivalent to the files that it read.
    let again = scratch.file("again", &text(&output.stdout));
    let same = netpolicy(&["--policy-file", &again, "cat"]);
    let without_origins = |output: &Output| -> Vec<String> {
        text(&output.stdout)
            .lines()
            .map(|line| line.split(" #").next().unwrap_or("").trim_end().to_owned())
            .collect()
    };
    assert_eq!(without_origins(&same), without_origins(&output));
}

#[test]
fn show_prints_what_a_program_can_read() {
    let output = netpolicy(&["-o", "json", "show", "--processes", "none"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the output is only JSON");
    assert_eq!(
        (document["schema"].as_str(), document["kind"].as_str()),
        (Some("netpolicy/v1"), Some("host"))
    );
    let host: model::Host = serde_json::from_value(document["data"].clone()).expect("a host");
    assert!(host.device_named("lo").is_some());
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let mut child = command(&["-o", "json", "show", "--processes", "none"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let mut words = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut words).expect("reads");
    assert_eq!((child.wait().expect("ends").code(), words.as_str()), (Some(0), ""));
}

#[test]
fn colour_is_used_only_where_it_is_asked_for() {
    let escapes = |arguments: &[&str], no_color: Option<&str>| {
        let mut command = command(arguments);
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        text(&command.output().expect("runs").stdout).contains('\x1b')
    };
    let show = ["show", "--processes", "none"];
    assert!(!escapes(&show, None), "a pipe is not a terminal");
    let always = ["--color", "always", "show", "--processes", "none"];
    assert!(escapes(&always, None));
    assert!(escapes(&always, Some("1")), "an option takes precedence over the environment");
    assert!(!escapes(&["--color", "never", "show", "--processes", "none"], None));
}

/// Returns Bash's completions for the last word, using the script of `completions bash`.
fn offered_by_bash(words: &[&str]) -> Vec<String> {
    let script = r#"
        directory=$(dirname "$1") && PATH=$directory:$PATH && shift
        source <(netpolicy completions bash)
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        $(complete -p netpolicy | sed 's/.*-F \([^ ]*\).*/\1/') netpolicy "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_netpolicy")])
        .args(words)
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn a_shell_is_offered_values_as_well_as_options() {
    let own = std::process::id().to_string();
    for (words, value) in [
        (&["netpolicy", "attach", "1", "--policy", ""][..], "latency"),
        (&["netpolicy", "attach", "1", "--delivery", "sus"], "suspend20"),
        (&["netpolicy", "set", "device", ""], "lo"),
        (&["netpolicy", "set", "device", "lo", "def"], "defer50"),
        (&["netpolicy", "explain", "pow"], "power"),
        (&["netpolicy", "compare", "x", "--b", "sus"], "suspend20"),
        (&["netpolicy", "compare", "x", "--a", ""], "current"),
        (&["netpolicy", "roll"], "rollback"),
    ] {
        let offered = offered_by_bash(words);
        assert!(offered.iter().any(|one| one == value), "{words:?}: {offered:?}");
    }
    assert!(
        !offered_by_bash(&["netpolicy", "attach", "1", "--policy", ""]).contains(&"suspend20".to_owned())
    );
    assert!(!offered_by_bash(&["netpolicy", "attach", ""]).contains(&own), "it has no socket that receives");
}

#[test]
fn every_shell_has_completions_and_every_command_a_manual_page() {
    for shell in ["bash", "zsh", "fish"] {
        let output = netpolicy(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("netpolicy"), "{shell}");
    }
    let scratch = Scratch::new("man");
    let output = netpolicy(&["man", "--dir", &scratch.path("man")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |page: &str| std::fs::read_to_string(scratch.0.path().join("man").join(page)).expect(page);
    for name in ["netpolicy", "netpolicy-show", "netpolicy-apply", "netpolicy-tc-load"] {
        let page = read(&format!("man8/{name}.8"));
        assert!(page.contains(&format!(".TH {name} 8")), "{page}");
        for section in
            ["NAME", "SYNOPSIS", "DESCRIPTION", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""]
        {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} lacks {section}:\n{page}");
        }
        assert_eq!(page.matches(".ds Aq").count(), 2, "one preamble: {page}");
    }
    // A command's page has only the command's own synopsis and options; global options have a separate page.
    let synopsis = |page: &str| {
        let (_, after) = page.split_once(".SH SYNOPSIS\n").expect("a synopsis");
        after.split_once("\n.SH").expect("more sections").0.replace('\\', "")
    };
    let apply = read("man8/netpolicy-apply.8");
    assert!(synopsis(&apply).contains("dry-run") && !apply.replace('\\', "").contains("--netns"), "{apply}");
    assert!(synopsis(&read("man8/netpolicy.8")).contains("netns"));
    assert!(!scratch.0.path().join("man/man8/netpolicy-guard.8").exists(), "a hidden command has no page");
    let policy_file = read("man5/netpolicy.toml.5").replace('\\', "");
    for row in policy_file::key_table() {
        assert!(policy_file.contains(&format!("fB{}fR", row.path)), "{}: {policy_file}", row.path);
    }
}

#[test]
fn a_process_that_is_not_there_is_named_with_the_state_of_the_host() {
    let gone = {
        let mut child = Command::new("true").spawn().expect("starts");
        child.wait().expect("ends");
        child.id().to_string()
    };
    let output = netpolicy(&["attach", &gone, "--delivery", "suspend20"]);
    assert_eq!(output.status.code(), Some(1));
    let words = text(&output.stderr).replace(&gone, "PID");
    insta::assert_snapshot!(words);
}

#[test]
fn a_namespace_that_is_misspelt_does_not_read_as_nothing_applied() {
    for command in [&["verify"][..], &["history"], &["sockets", "list"]] {
        let output = netpolicy(&[&["--netns", "no-such-namespace"], command].concat());
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {words}");
        assert!(words.contains("no-such-namespace"), "{words}");
    }
}

#[test]
fn fullbusy_is_refused_for_a_running_process_and_says_why() {
    let own = std::process::id().to_string();
    let output = netpolicy(&["attach", &own, "--delivery", "fullbusy"]);
    assert_eq!(output.status.code(), Some(6));
    insta::assert_snapshot!(text(&output.stderr).replace(&own, "PID"));
}

#[test]
fn userbusy_is_refused_for_a_running_process_and_names_what_the_kernel_could_do() {
    let own = std::process::id().to_string();
    let output = netpolicy(&["attach", &own, "--delivery", "userbusy"]);
    assert_eq!(output.status.code(), Some(6));
    insta::assert_snapshot!(text(&output.stderr).replace(&own, "PID"));
}

/// Runs a command that must end whatever its input is, and returns its output.
fn ends(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    for _ in 0..1_000 {
        if child.try_wait().expect("waits").is_some() {
            return child.wait_with_output().expect("reads");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ = child.kill();
    panic!("netpolicy hangs");
}

#[test]
fn a_policy_file_that_is_a_pipe_without_a_writer_or_has_no_end_is_refused() {
    let scratch = Scratch::new("pipe");
    let pipe = scratch.0.path().join("pipe.toml");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    for (file, why) in
        [(scratch.path("pipe.toml"), "no process writes"), ("/dev/zero".to_owned(), "larger than")]
    {
        let output = ends(command(&["--policy-file", &file, "cat"]));
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains(why) && words.contains(&file), "{words}");
    }
}

#[test]
fn a_policy_file_that_is_not_text_is_refused_with_its_line() {
    let scratch = Scratch::new("binary");
    std::fs::write(scratch.0.path().join("a.toml"), b"# first\n\xff\xfe").expect("file");
    let output = netpolicy(&["--policy-file", &scratch.path("a.toml"), "cat"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 2 is not UTF-8"), "{}", text(&output.stderr));
}

#[test]
fn hidden_files_of_editors_are_no_policy_files() {
    let scratch = Scratch::new("hidden");
    scratch.file("10-a.toml", "[device.eth0]\npolicy = \"latency\"\n");
    scratch.file(".#10-a.toml", "half a sen");
    let output = netpolicy(&["--policy-dir", &scratch.path("."), "cat"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("latency"));
}

#[test]
fn a_policy_directory_that_was_named_must_exist() {
    let scratch = Scratch::new("no-directory");
    let output = netpolicy(&["--policy-dir", &scratch.path("polcy.d"), "cat"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("polcy.d"), "{}", text(&output.stderr));
}

#[test]
fn a_network_namespace_that_is_a_pipe_is_refused() {
    let scratch = Scratch::new("netns-pipe");
    let pipe = scratch.0.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let output = ends(command(&["--netns", &scratch.path("pipe"), "show", "--processes", "none"]));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    let output = netpolicy(&["set", "device", "a\u{1b}[31mred", "latency"]);
    assert_ne!(output.status.code(), Some(0));
    assert!(!text(&output.stderr).contains('\u{1b}'), "{:?}", text(&output.stderr));
}

#[test]
fn what_a_setting_may_cost_can_be_said_behind_it() {
    let output = netpolicy(&["set", "device", "no-such-device", "fullbusy", "--polling-cpus", "2"]);
    let words = text(&output.stderr);
    assert!(!words.contains("unexpected argument"), "{words}");
}

#[test]
fn a_schema_as_records_is_one_record() {
    for of in ["policy-file", "recipe-file", "tc", "sim"] {
        let output = netpolicy(&["-o", "jsonl", "schema", of]);
        assert_eq!(text(&output.stdout).lines().count(), 1, "{of}");
    }
}

#[test]
fn the_descriptions_of_schemas_have_no_links_and_values_of_rust() {
    let scratch = Scratch::new("schemas");
    assert_eq!(netpolicy(&["schema", "--dir", &scratch.path("")]).status.code(), Some(0));
    for file in std::fs::read_dir(scratch.path("")).expect("a directory") {
        let file = file.expect("an entry").path();
        let schema = std::fs::read_to_string(&file).expect("a schema");
        for rust in ["[`", "::", "`None`"] {
            let line = schema.lines().find(|line| line.contains("\"description\"") && line.contains(rust));
            assert_eq!(line, None, "{}", file.display());
        }
    }
}

#[test]
fn undo_is_another_word_for_rollback() {
    let [undo, rollback] = ["undo", "rollback"].map(|word| netpolicy(&[word, "--help"]));
    assert_eq!((undo.status.code(), undo.stdout), (Some(0), rollback.stdout));
}

#[test]
fn a_rollback_says_so_if_what_may_be_in_force_cannot_be_read() {
    let scratch = Scratch::new("unreadable");
    let transaction = scratch.0.path().join("journal/20261121T040500.123456Z-1a2b");
    std::fs::create_dir_all(&transaction).expect("directory");
    std::fs::write(transaction.join("journal.jsonl"), "").expect("an emptied journal");
    let output = netpolicy(&["--state-dir", &scratch.path("."), "rollback"]);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("undo.sh"), "{words}");
    let words = text(&netpolicy(&["--state-dir", &scratch.path("."), "verify"]).stderr);
    assert!(words.contains("not compared"), "{words}");
}

#[test]
fn a_history_of_damaged_transactions_is_not_an_empty_one() {
    let scratch = Scratch::new("damaged");
    let transaction = scratch.0.path().join("journal/20261121T040500.123456Z-1a2b");
    std::fs::create_dir_all(&transaction).expect("directory");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        transaction.join("journal.jsonl"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("a pipe");
    std::fs::write(transaction.join("undo.sh"), "#!/bin/sh\nboot='this-or-another'\n").expect("a script");
    let output = ends(command(&["--state-dir", &scratch.path("."), "history"]));
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert!(text(&output.stdout).contains("unreadable"), "{}", text(&output.stdout));
    let script = "journal/20261121T040500.123456Z-1a2b/undo.sh";
    assert!(words.contains("a pipe") && words.contains(script), "{words}");
    assert!(!words.contains("No transaction yet"), "{words}");
}

#[test]
fn what_is_wrong_with_the_journal_is_said_once() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("everybodys");
    std::fs::create_dir_all(scratch.0.path().join("journal")).expect("directory");
    std::fs::set_permissions(scratch.0.path(), std::fs::Permissions::from_mode(0o777)).expect("everybody's");
    for arguments in [&["history"][..], &["verify"], &["set", "device", "lo", "interrupt"]] {
        let output = netpolicy(&[&["--state-dir", &scratch.path(".")], arguments].concat());
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{words}");
        assert_eq!(words.matches("error: ").count(), 1, "{words}");
    }
}

#[test]
fn evidence_that_gzip_has_packed_is_read_as_it_is() {
    let runs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/runs/memcached-matrix-short.json.gz");
    let output = netpolicy(&["bench", "report", runs]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("suspend200"), "{}", text(&output.stdout));
}

#[test]
fn the_last_transaction_is_not_skipped_for_an_older_one_because_it_cannot_be_read() {
    let scratch = Scratch::new("unreadable-newest");
    let journal = scratch.0.path().join("journal");
    for name in ["20261121T040500.123456Z-1a2b", "20261121T040501.123456Z-1a2b"] {
        std::fs::create_dir_all(journal.join(name)).expect("directory");
        std::fs::write(journal.join(name).join("journal.jsonl"), "not a journal\n").expect("a journal");
    }
    let output = netpolicy(&["--state-dir", &scratch.path("."), "rollback"]);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("the last transaction, 20261121T040501.123456Z-1a2b, cannot be read"), "{words}");
}

#[test]
fn netpolicy_does_not_attach_to_itself() {
    // `exec` replaces the shell, so the command inherits the pid.
    for words in ["attach $$ --policy latency", "set task $$ latency"] {
        let script = format!("exec \"$0\" {words}");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_netpolicy")])
            .stdin(Stdio::null())
            .output()
            .expect("runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(said.contains("is this netpolicy command itself"), "{said}");
    }
}

#[test]
fn fullbusy_in_a_policy_file_is_refused_as_it_is_on_the_command_line() {
    let scratch = Scratch::new("fullbusy");
    let file =
        scratch.file("a.toml", "[device.eth9]\ndelivery = \"fullbusy\"\nbudget = { polling_cpus = 4 }\n");
    for command in ["plan", "apply", "try"] {
        let output = netpolicy(&["--state-dir", &scratch.path("state"), "--policy-file", &file, command]);
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{command}: {words}");
        assert!(
            words.contains("device eth9: fullbusy (requested at ") && words.contains("a.toml:2)"),
            "{words}"
        );
    }
    assert!(!scratch.0.path().join("state/journal").exists(), "no transaction was begun");
}

#[test]
fn a_command_without_a_name_is_a_mistake_of_the_command_line() {
    let output = netpolicy(&["run", "--policy", "latency", "--", ""]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("the name of the command to run is empty"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_kernels_words_are_not_followed_by_the_librarys_numbers() {
    let output = netpolicy(&["show", "--processes", "none", "--svg", "/nonexistent/a.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: /nonexistent/a.svg: No such file or directory\nNothing was changed.\n"
    );
}

#[test]
fn a_refusal_about_a_device_does_not_talk_of_processes() {
    let output = netpolicy(&["set", "device", "no-such-device", "latency"]);
    let words = text(&output.stderr);
    assert!(words.contains("no-such-device: no such device") && !words.contains("not read: "), "{words}");
}

#[test]
fn thousands_of_sections_keep_the_lines_they_were_asked_at() {
    let scratch = Scratch::new("many");
    let sections: String = (0..20_000).map(|n| format!("[device.e{n}]\npolicy = \"latency\"\n")).collect();
    let file = scratch.file("a.toml", &sections);
    let output = netpolicy(&["--policy-file", &file, "cat"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(printed.matches("[device.").count(), 20_000);
    assert!(printed.contains("a.toml:40000"), "the last section's policy is on the last line");
}

#[test]
fn an_unreadable_journal_is_reported_before_it_hides_a_trial() {
    let scratch = Scratch::new("no-journal");
    scratch.file("journal", "not a directory");
    let output = netpolicy(&["--state-dir", &scratch.path("."), "show", "--processes", "none"]);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "explain shows the host nevertheless: {words}");
    assert!(words.contains("cannot read") && words.contains("Not a directory"), "{words}");
}

#[test]
fn a_daemon_that_ends_before_its_answer_leaves_it_open_whether_anything_was_changed() {
    use std::io::{BufRead, BufReader, Write};
    let scratch = Scratch::new("unanswered");
    let listener = std::os::unix::net::UnixListener::bind(scratch.path("io.netpolicy")).expect("a socket");
    let daemon = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut heard = BufReader::new(stream.try_clone().expect("both ways"));
        let mut call = Vec::new();
        heard.read_until(0, &mut call).expect("Status");
        (&stream).write_all(b"{\"parameters\":{}}\0").expect("answered");
        heard.read_until(0, &mut call).expect("Unset");
        String::from_utf8(call).expect("words")
    });
    let output = netpolicy(&["--state-dir", &scratch.path(""), "unset", "device", "lo"]);
    let asked = daemon.join().expect("it was asked");
    assert!(asked.contains("io.netpolicy.Unset"), "{asked}");
    assert_eq!(output.status.code(), Some(1));
    let words = text(&output.stderr);
    assert!(words.contains("Whether anything was changed is unknown."), "{words}");
}

#[test]
fn a_setting_is_explained_by_its_name_and_by_its_key_and_a_wrong_one_with_the_nearest() {
    let explained = |words: &[&str]| netpolicy(&[&["explain"][..], words].concat());
    for name in ["gro-flush-timeout", "gro_flush_timeout"] {
        let page = text(&explained(&["setting", name]).stdout);
        assert!(
            page.contains("since    Linux 6.13") && page.contains("key      gro_flush_timeout"),
            "{page}"
        );
    }
    for (words, says) in [
        (["setting", "rx-usec"], "did you mean `rx-usecs`?"),
        (["eth0", "rx-0"], "quote the name of an object, or write `setting rx-0`"),
    ] {
        let output = explained(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

#[test]
fn a_command_of_a_program_that_is_not_installed_names_the_package() {
    let scratch = Scratch::new("alone");
    std::fs::copy(env!("CARGO_BIN_EXE_netpolicy"), scratch.path("netpolicy")).expect("copied");
    for arguments in [
        &["tc", "load", "rules.batch"][..],
        &["-o", "json", "bench", "live"],
        &["lab", "--help"],
        &["help", "sim"],
        &["schema", "tc"],
    ] {
        let output = Command::new(scratch.path("netpolicy")).args(arguments).output().expect("runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{arguments:?}: {said}");
        assert!(
            said.contains("is not installed") && said.contains("netpolicy-tools"),
            "{arguments:?}: {said}"
        );
    }
    // Commands that print something for every program omit programs that are not installed.
    for (arguments, file) in [
        (["man", "--dir", &scratch.path("pages")], "pages/man8/netpolicy.8"),
        (["schema", "--dir", &scratch.path("schema")], "schema/show.json"),
    ] {
        let output = Command::new(scratch.path("netpolicy")).args(arguments).output().expect("runs");
        assert!(
            output.status.success() && std::fs::exists(scratch.path(file)).is_ok_and(|there| there),
            "{file}"
        );
    }
}

#[test]
fn a_program_is_found_where_packages_install_it() {
    let scratch = Scratch::new("installed");
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_netpolicy"));
    for (name, place) in [("netpolicy", "sbin"), ("netpolicy-tc", "libexec/netpolicy")] {
        std::fs::create_dir_all(scratch.path(place)).expect("a directory");
        std::fs::copy(built.with_file_name(name), scratch.path(&format!("{place}/{name}"))).expect("copied");
    }
    let run = |arguments: &[&str]| {
        Command::new(scratch.path("sbin/netpolicy")).args(arguments).output().expect("runs")
    };
    let output = run(&["tc", "load", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("/nowhere: No such file or directory"), "{}", text(&output.stderr));
    // Usage and completions name `netpolicy`, not the separate tool.
    assert!(text(&run(&["tc", "load", "--help"]).stdout).contains("Usage: netpolicy tc load"));
    let mut shell = Command::new(scratch.path("sbin/netpolicy"));
    shell.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_IFS", "\n");
    let offered = shell.args(["--", "netpolicy", "tc", "lo"]).output().expect("runs");
    assert_eq!(text(&offered.stdout), "load");
}

/// Returns a report as `netpolicy -o json report` prints it.
fn report_of(host: &str, change: &serde_json::Value) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let mut report = serde_json::json!({ "schema": session::page::SCHEMA, "kind": "report", "data": {
        "host": host, "at_unix_seconds": now.as_secs(), "version": "0.1.0", "release": "6.18.44" } });
    report["data"]
        .as_object_mut()
        .expect("an object")
        .extend(change.as_object().cloned().unwrap_or_default());
    report.to_string()
}

#[test]
fn an_audit_ends_with_3_for_its_gate_and_worse_and_names_who_did_not_report() {
    let scratch = Scratch::new("audit");
    std::fs::create_dir(scratch.path("reports")).expect("a directory");
    scratch.file("reports/a.json", &report_of("a", &serde_json::json!({})));
    let warning = serde_json::json!({ "findings": [{ "rule": "rps-needless", "severity": "warning" }] });
    scratch.file("reports/b.json", &report_of("b", &warning));
    scratch.file("reports/README", "this is not a report, and is not read");
    let reports = scratch.path("reports");
    let code = |arguments: &[&str]| {
        let output = netpolicy(&[&["audit"], arguments].concat());
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(code(&[&reports]).0, Some(0), "a warning is below the threshold");
    assert_eq!(code(&[&reports, "--gate", "warning"]).0, Some(3));
    let expect = scratch.file("hosts", "a\nb # in rack 3\n\nc\n");
    let (ended, words) = code(&[&reports, "--expect", &expect]);
    assert_eq!(ended, Some(3));
    assert!(words.starts_with("2 of 3 expected hosts reported; 1 without any issue.\n"), "{words}");
    assert!(words.lines().any(|line| line.starts_with("missing") && line.ends_with(" c")), "{words}");
    let cut = scratch.file("cut.json", &report_of("d", &serde_json::json!({}))[..60]);
    let (ended, words) = code(&[&reports, &cut]);
    assert_eq!(ended, Some(3));
    assert!(words.contains("unreadable") && words.contains("it is truncated"), "{words}");
    let html = scratch.path("audit.html");
    assert_eq!(code(&[&reports, "--html", &html]).0, Some(0));
    let html = std::fs::read_to_string(&html).expect("a page");
    assert!(html.contains("rps-needless") && html.ends_with("</html>\n"));
    assert_eq!(code(&[&scratch.path("absent")]).0, Some(1));
    std::fs::create_dir(scratch.path("empty")).expect("a directory");
    assert_eq!(code(&[&scratch.path("empty")]).0, Some(2));
    assert_eq!(code(&[&reports, "--expect", &scratch.path("absent")]).0, Some(2));
    assert_eq!(code(&[]).0, Some(2));
}

/// A redacted recording of a lab host that has a policy in force.
const RECORDING: &str = include_str!("hosts/recording.json");

#[test]
fn what_is_not_a_recording_is_refused_by_what_it_is() {
    let scratch = Scratch::new("recording");
    let said = |arguments: &[&str]| {
        let output = netpolicy(arguments);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let huge = scratch.path("huge.json");
    let file = std::fs::File::create(&huge).expect("a file");
    file.set_len(session::recording::RECORDING_BYTES_MAX as u64 + 1).expect("a sparse file");
    for (file, code, words) in [
        (scratch.path("absent.json"), 1, "absent.json: No such file or directory"),
        (scratch.path(""), 1, "Is a directory"),
        (scratch.file("empty.json", ""), 2, "it is not a recording of `netpolicy record`"),
        (scratch.file("text.json", "Linux 6.18"), 2, "it is not a recording"),
        (scratch.file("report.json", &report_of("a", &serde_json::json!({}))), 2, "it is not a recording"),
        (scratch.file("cut.json", &RECORDING[..RECORDING.len() / 2]), 2, "before it is complete"),
        (scratch.file("next.json", &RECORDING.replace("\"format\":1", "\"format\":2")), 2, "format 2;"),
        (scratch.file("more.json", &RECORDING.replace("\"redacted\":", "\"x\":1,\"redacted\":")), 2, "`x`"),
        (huge, 2, "more than 67108864 bytes"),
    ] {
        for command in ["show", "doctor", "plan", "explain", "history", "verify"] {
            let (ended, data, message) = said(&[command, "--from", &file]);
            assert_eq!((ended, data.as_str()), (Some(code), ""), "{command} {file}: {message}");
            assert!(message.contains(words) && message.contains(&file), "{command} {file}: {message}");
        }
    }
    let whole = scratch.file("whole.json", RECORDING);
    assert_eq!(said(&["show", "--from", &whole]).0, Some(0));
    for arguments in [
        &["--netns", "web", "plan", "--from", &whole][..],
        &["--policy-file", "a.toml", "plan", "--from", &whole],
        &["doctor", "--seconds", "3", "--from", &whole],
        &["apply", "--from", &whole],
    ] {
        assert_eq!(said(arguments).0, Some(2), "{arguments:?}");
    }
}

#[test]
fn a_recording_or_report_that_is_no_ordinary_file_is_named_at_once() {
    let scratch = Scratch::new("hostile-files");
    let pipe = scratch.0.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    std::os::unix::fs::symlink("loop", scratch.0.path().join("loop")).expect("a link");
    let sparse = std::fs::File::create(scratch.path("sparse")).expect("a file");
    sparse.set_len(10 << 30).expect("a sparse file");
    let head = &RECORDING[..RECORDING.find("\"redacted\"").expect("a key")];
    for (name, content) in [
        ("nul", b"\0".repeat(4096)),
        ("bytes", b"\xff\xfe{".to_vec()),
        ("gzip", b"\x1f\x8b\x08\0".to_vec()),
        ("nested", b"[".repeat(1 << 20)),
        ("nested-recording", [head.as_bytes(), b"\"x\":", &b"[".repeat(1 << 20)].concat()),
    ] {
        std::fs::write(scratch.path(name), content).expect("a file");
    }
    for (file, of_recording, of_report) in [
        (scratch.path("pipe"), Some(1), 3),
        (scratch.path("loop"), Some(1), 1),
        ("/dev/zero".to_owned(), Some(2), 3),
        (scratch.path("sparse"), Some(2), 3),
        (scratch.path("nul"), Some(2), 3),
        (scratch.path("bytes"), Some(2), 3),
        (scratch.path("gzip"), Some(2), 3),
        (scratch.path("nested"), Some(2), 3),
        (scratch.path("nested-recording"), Some(2), 3),
    ] {
        for arguments in [&["show", "--from", &file][..], &["diff", &file, &file]] {
            let output = ends(command(arguments));
            let words = text(&output.stderr);
            assert_eq!(output.status.code(), of_recording, "{arguments:?}: {words}");
            assert_eq!(words.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{words}");
            assert!(words.contains(&file), "{words}");
        }
        let output = ends(command(&["audit", &file]));
        assert_eq!(output.status.code(), Some(of_report), "{file}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("unreadable") || of_report != 3, "{}", text(&output.stdout));
        let output = ends(command(&["audit", &file, "--expect", &file]));
        assert_eq!(output.status.code(), Some(2), "{file}: {}", text(&output.stderr));
    }
}

#[test]
fn a_difference_between_recordings_is_named_by_object_and_fact() {
    let scratch = Scratch::new("diff");
    let before = scratch.file("before.json", RECORDING);
    let changed = RECORDING.replace("\"mtu\":1500", "\"mtu\":9000").replace("\"started\":", "\"started\":1");
    assert_ne!(RECORDING, changed);
    let after = scratch.file("after.json", &changed);
    let same = netpolicy(&["diff", &before, &before]);
    assert_eq!((same.status.code(), text(&same.stdout)), (Some(0), String::new()));
    let output = netpolicy(&["-o", "jsonl", "diff", &before, &after]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let one: serde_json::Value = serde_json::from_str(lines.trim_end()).expect("one difference");
    let data = &one["data"];
    assert_eq!((&data["fact"], &data["a"], &data["b"]), (&"mtu".into(), &"1500".into(), &"9000".into()));
    let tuned = "\"local_ports\":{\"first\":1024,\"last\":65535},\"reserved_ports\":[{\"first\":8000,\"last\":8080}],\"rps_default_mask\":\"1\",\"irqs\":";
    let tuned = scratch.file("tuned.json", &RECORDING.replacen("\"irqs\":", tuned, 1));
    let shown = text(&netpolicy(&["-o", "jsonl", "diff", &before, &tuned]).stdout);
    let values = shown.lines().map(|line| {
        let one: serde_json::Value = serde_json::from_str(line).expect("a difference");
        ["fact", "a", "b"].map(|field| one["data"][field].as_str().unwrap_or("-").to_owned()).join(" ")
    });
    assert_eq!(
        values.collect::<Vec<_>>(),
        ["local ports 32768-60999 1024-65535", "reserved ports - 8000-8080", "rps_default_mask - 1"]
    );
    assert_eq!(netpolicy(&["diff", &before, &scratch.path("absent.json")]).status.code(), Some(1));
}
